//! Messages about the progress of a call, for the client that waits for it. No model reads them, and the audit does not
//! record them.

use std::sync::Arc;

use monstrum_egress::SearchBudget;
use tokio::sync::mpsc;

use super::call_secrets::{CallSecrets, redact_text};

/// Receives the messages about the progress of a call, without secrets. If it is full, messages are dropped.
pub type ProgressListener = mpsc::Sender<String>;

/// Redacts the secrets of a call in its messages, and passes them to the listener, until the messages end.
pub async fn pass_on(mut messages: mpsc::Receiver<String>, listener: &ProgressListener, secrets: &CallSecrets) {
    // The messages must not use up the budget for the answer of the call.
    let budget = Arc::new(SearchBudget::default());
    while let Some(message) = messages.recv().await {
        let bytes = message.len();
        let redacted = secrets.search(bytes, &budget, move |redactors, watch| redact_text(message, redactors, watch));
        match redacted.await {
            // A listener that reads too slowly misses messages.
            Ok(message) => drop(listener.try_send(message)),
            Err(withheld) => {
                tracing::debug!(why = withheld.message(), "a message about the progress of a call was dropped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use monstrum_egress::Redactor;
    use monstrum_types::Secret;

    use super::*;

    #[tokio::test]
    async fn messages_contain_no_secrets_and_wait_for_no_listener() {
        let secrets = CallSecrets::default();
        secrets.redact_with(Arc::new(Redactor::new([Secret::new("s3cr3t-t0ken".to_owned())])));
        let (sender, messages) = mpsc::channel(4);
        for message in ["uploading with s3cr3t-t0ken", "half done", "done"] {
            sender.try_send(message.to_owned()).unwrap();
        }
        drop(sender);
        let (listener, mut told) = mpsc::channel(2);
        pass_on(messages, &listener, &secrets).await;
        assert_eq!(told.try_recv().unwrap(), "uploading with [redacted]");
        assert_eq!(told.try_recv().unwrap(), "half done");
        assert!(told.try_recv().is_err(), "the listener had no room for the third message");
    }
}
