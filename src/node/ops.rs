//! The operators' HTTP listener: `/metrics`, `/healthz`, `/readyz`. Loopback by default, no credentials, read-only.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::context::Context;
use crate::metrics;

/// The content type of the OpenMetrics text format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves operators until the node ends.
pub(crate) async fn serve(context: Context, listener: TcpListener) {
    let stop = context.stop.clone();
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(context);
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await });
    if let Err(error) = served.await {
        tracing::warn!("ops_listen: {error}");
    }
}

async fn metrics_page(State(context): State<Context>) -> Response {
    match metrics::render(&context) {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Ready while new sessions are taken; edges that are down are told but do not make a node unready, since its own
/// clients can still reach each other.
async fn ready(State(context): State<Context>) -> Response {
    if context.lame_duck.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "leaving\n").into_response();
    }
    let down = context.edges.list().iter().filter(|s| !s.edge().is_up()).count();
    (StatusCode::OK, format!("ready, edges down: {down}\n")).into_response()
}
