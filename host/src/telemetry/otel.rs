//! Export of the server's own spans to OpenTelemetry, in batches, by OTLP over HTTP (protobuf).

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;

use super::BoxedLayer;

/// The time limit for sending a batch. Spans that the collector does not accept in time are dropped.
const SEND_MAX: Duration = Duration::from_secs(10);
/// The time limit for sending the last spans at shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends spans to one collector.
pub(super) struct Exporter(SdkTracerProvider);

/// Creates an exporter to the collector at `endpoint`, such as `http://127.0.0.1:4318`, and the layer that collects
/// spans for it.
pub(super) fn exporter(endpoint: &str) -> Result<(Exporter, BoxedLayer), Failure> {
    let url: http::Uri = format!("{}/v1/traces", endpoint.trim_end_matches('/')).parse()?;
    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(SEND_MAX);
    let client = Client { http: http.build()?, runtime: tokio::runtime::Handle::current() };
    let exporter =
        SpanExporter::builder().with_http().with_http_client(client).with_endpoint(url.to_string()).build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("monstrum").build())
        .build();
    let tracer = provider.tracer("monstrum");
    // Only spans of the host are exported, because spans of libraries could contain transferred data.
    let own = Targets::new()
        .with_target("monstrum_agent", LevelFilter::DEBUG)
        .with_target("monstrum_core", LevelFilter::DEBUG)
        .with_target("monstrum_host", LevelFilter::DEBUG);
    let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_filter(own).boxed();
    Ok((Exporter(provider), layer))
}

/// Makes `span` a child of a client's span. The ids are hex digits.
pub(super) fn continue_trace(span: &Span, trace: &str, parent: &str, is_sampled: bool) {
    let (Ok(trace), Ok(parent)) = (TraceId::from_hex(trace), SpanId::from_hex(parent)) else { return };
    let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let remote = SpanContext::new(trace, parent, flags, true, TraceState::default());
    if let Err(error) = span.set_parent(Context::new().with_remote_span_context(remote)) {
        tracing::debug!(%error, "a span could not be added to the trace of a client");
    }
}

impl Exporter {
    pub(super) async fn flush(self) {
        let provider = self.0;
        // The shutdown blocks until the exporter's thread has sent the spans, and that thread needs the runtime.
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_MAX)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last spans were not exported");
        }
    }
}

/// The HTTP client of the exporter. It uses the same TLS stack as the rest of the host, and runs requests on `runtime`,
/// because the thread of the exporter is not a thread of the runtime.
struct Client {
    http: reqwest::Client,
    runtime: tokio::runtime::Handle,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl HttpClient for Client {
    fn send_bytes<'client, 'future>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'client: 'future,
        Self: 'future,
    {
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            let answer = http.execute(request.try_into()?).await?;
            let mut response = Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                *headers = answer.headers().clone();
            }
            Ok(response.body(answer.bytes().await?)?)
        });
        Box::pin(async move { sent.await? })
    }
}
