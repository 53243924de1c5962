//! The minimum speed of request bodies. The speed is measured only while a handler waits for the body.

mod meter;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep_until};

pub use meter::Meter;

/// The minimum speed of a transfer: `bytes_min` in every `span`. A [`Meter`] checks the speed several times in each
/// span.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub bytes_min: u64,
    pub span: Duration,
}

impl Pace {
    /// The default: 1 KiB/s, measured over 30 s. This is a tenth of the speed of a telephone line. A body of 2 MiB
    /// takes at most 35 minutes, and a client that sends nothing is detected within 30 s.
    pub const DEFAULT: Pace = Pace { bytes_min: 30 << 10, span: Duration::from_secs(30) };
}

/// The error for a body that arrives too slowly.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body arrived too slowly; send at least {} bytes every {} s", .0.bytes_min, .0.span.as_secs())]
pub(crate) struct TooSlow(Pace);

impl TooSlow {
    /// Returns this error if it is the cause of `error`.
    pub(crate) fn is_cause_of(error: &(dyn Error + 'static)) -> Option<TooSlow> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(too_slow) = error.downcast_ref::<TooSlow>() {
                return Some(*too_slow);
            }
            next = error.source();
        }
        None
    }
}

/// Enforces the minimum speed: wraps the request body in a body that fails if it arrives too slowly.
pub(crate) async fn keep(pace: Pace, request: Request, next: Next) -> Response {
    let request = request.map(|body| if body.is_end_stream() { body } else { paced(body, pace) });
    next.run(request).await
}

fn paced(body: Body, pace: Pace) -> Body {
    Body::new(Paced { body, pace, meter: Meter::new(pace), step: None })
}

struct Paced {
    body: Body,
    pace: Pace,
    /// The meter of the body, which runs while a handler waits for the body.
    meter: Meter,
    /// A timer until the end of the meter's step.
    step: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.meter.pause();
            self.step = None;
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref().map(Bytes::len));
            self.meter.add(bytes.unwrap_or_default());
            return Poll::Ready(frame);
        }
        loop {
            self.meter.start();
            let end = self.meter.step_ends().expect("the meter was started");
            let step = self.step.get_or_insert_with(|| Box::pin(sleep_until(end)));
            if step.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.step = None;
            if self.meter.is_too_slow() {
                return Poll::Ready(Some(Err(axum::Error::new(TooSlow(self.pace)))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;
    use tokio::time::Instant;

    use super::*;

    /// Returns a body of pieces with `bytes` bytes each, and a `pause` before each piece.
    fn body(pieces: usize, bytes: usize, pause: Duration) -> Body {
        let pieces = stream::iter(0..pieces).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes]))
        });
        paced(Body::from_stream(pieces), Pace::DEFAULT)
    }

    /// Returns the number of bytes of the body, or the seconds until it fails.
    async fn read(body: Body) -> Result<usize, u64> {
        let began = Instant::now();
        match body.collect().await {
            Ok(whole) => Ok(whole.to_bytes().len()),
            Err(error) => {
                assert!(TooSlow::is_cause_of(&error).is_some(), "{error}");
                Err(began.elapsed().as_secs())
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_dribbles_fails_after_thirty_seconds() {
        assert_eq!(read(body(1000, 1, Duration::from_secs(1))).await, Err(30));
        assert_eq!(read(body(1, 1, Duration::from_secs(3600))).await, Err(30), "not a byte");
        assert_eq!(read(body(10, 1, Duration::from_secs(1))).await, Ok(10), "the body ended within the first span");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_line_is_fast_enough() {
        assert_eq!(read(body(120, 1100, Duration::from_secs(1))).await, Ok(132_000));
        assert_eq!(read(body(120, 900, Duration::from_secs(1))).await, Err(30));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_earlier_counts_for_thirty_seconds_only() {
        let stalls = stream::iter([(0, 1 << 20), (3600, 1)]).then(|(pause_s, bytes)| async move {
            tokio::time::sleep(Duration::from_secs(pause_s)).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; bytes]))
        });
        let failed = read(paced(Body::from_stream(stalls), Pace::DEFAULT)).await;
        assert_eq!(failed, Err(35), "the step of the megabyte, and the span after it");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_body_is_not_read_does_not_count() {
        let mut body = body(40, 1100, Duration::from_secs(1));
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame.unwrap().data_ref().map_or(0, Bytes::len);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(bytes, 44_000);
    }
}
