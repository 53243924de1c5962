//! Tickets of links into the console. A person gets a ticket with an API key, and opens the link in a browser.

use super::{InputErrors, OperationError, Person};
use crate::app::App;
use crate::console_sessions::{ConsoleError, NewTicket, TICKET_S_DEFAULT, TICKET_S_MAX};

/// Makes a ticket with which the caller logs in to the console, as the key of this request.
pub async fn create_ticket(app: &App, caller: &Person, ttl_s: Option<u32>) -> Result<NewTicket, OperationError> {
    let ttl_s = ttl_s.unwrap_or(TICKET_S_DEFAULT);
    let mut errors = InputErrors::default();
    if !(1..=TICKET_S_MAX).contains(&ttl_s) {
        errors.add("/ttl_s", format!("expected a number from 1 to {TICKET_S_MAX}"));
    }
    errors.check()?;
    Ok(app.console_sessions.new_ticket(&caller.key_hash, ttl_s).await?)
}

impl From<ConsoleError> for OperationError {
    fn from(error: ConsoleError) -> Self {
        let text = error.to_string();
        match error {
            ConsoleError::UnknownKey => OperationError::Unauthenticated(text),
            ConsoleError::UnknownTicket => OperationError::NotFound(text),
            ConsoleError::Kind(_) => OperationError::forbidden(text),
            ConsoleError::Busy => OperationError::Busy(text),
            ConsoleError::StalePolicy | ConsoleError::Audit(_) => OperationError::unavailable(text),
            ConsoleError::Unverified => OperationError::unverified("instance"),
            ConsoleError::Store(error) => error.into(),
            ConsoleError::Random(error) => OperationError::internal(error),
        }
    }
}
