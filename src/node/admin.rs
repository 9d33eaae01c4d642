//! The operators' socket: a Unix socket in `state_dir`, one request and one answer per connection, each a line.
//!
//! `edges`, `routes` and `status`, each with a tenant or without, answer a JSON object, and so does `reload`. Whoever may
//! open the socket is the operator; every request passes policy like any other.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use glocal_core::identity::Principal;
use glocal_core::limits::{ADMIN_REQUEST_BYTES_MAX, ADMIN_REQUESTS_MAX};
use glocal_core::policy::{Administer, Permit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::context::Context;
use crate::sight;
use crate::status;

/// The socket's name in `state_dir`.
pub const SOCKET: &str = "glocal.sock";
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// Opens the socket, replacing one that nobody listens on.
///
/// # Errors
/// The path and why; a socket in use means that another node runs on this directory.
pub fn bind(state_dir: &Path) -> Result<(UnixListener, PathBuf), (PathBuf, std::io::Error)> {
    let path = state_dir.join(SOCKET);
    let failed = |error| (path.clone(), error);
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        let error = std::io::Error::new(std::io::ErrorKind::AddrInUse, "another node runs on this state_dir");
        return Err(failed(error));
    }
    if path.exists() {
        std::fs::remove_file(&path).map_err(failed)?;
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok((listener, path))
}

/// Answers operators until the node ends.
pub async fn serve(context: Context, listener: UnixListener) {
    let requests = Arc::new(Semaphore::new(ADMIN_REQUESTS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = context.stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&requests).try_acquire_owned() else { continue };
        let context = context.clone();
        context.tasks.clone().spawn(async move {
            let _permit = permit;
            // An operator that has gone away needs no answer.
            let _ = tokio::time::timeout(DEADLINE, answer(&context, stream)).await;
        });
    }
}

async fn answer(context: &Context, stream: UnixStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(ADMIN_REQUEST_BYTES_MAX).read_line(&mut line).await?;
    let mut words = line.split_whitespace();
    let body = match (words.next(), words.next(), words.next()) {
        (Some("status"), tenant, None) => report(context, tenant).await,
        (Some("edges"), tenant, None) => edges(context, tenant).await,
        (Some("routes"), tenant, None) => routes(context, tenant).await,
        (Some("reload"), None, None) => reload(context).await,
        _ => Err("unknown request; known: status [tenant], edges [tenant], routes [tenant], reload".to_owned()),
    };
    let text = body.unwrap_or_else(|error| serde_json::json!({ "error": error }).to_string());
    stream.write_all(text.as_bytes()).await?;
    stream.write_all(b"\n").await
}

async fn reload(context: &Context) -> Result<String, String> {
    permit(context, None)?;
    // It goes on even when the operator does not wait for the answer: nothing is left half-way.
    let held = context.clone();
    let reload = context.tasks.spawn(async move { held.reloader.reload(&held).await });
    let report = reload.await.map_err(|error| error.to_string())?;
    serde_json::to_string(&report).map_err(|error| error.to_string())
}

async fn report(context: &Context, tenant: Option<&str>) -> Result<String, String> {
    json(&status::gather(context, &permit(context, tenant)?).await)
}

async fn edges(context: &Context, tenant: Option<&str>) -> Result<String, String> {
    json(&sight::edges(context, &permit(context, tenant)?).await)
}

async fn routes(context: &Context, tenant: Option<&str>) -> Result<String, String> {
    json(&sight::routes(context, &permit(context, tenant)?).await)
}

fn permit<'t>(context: &Context, tenant: Option<&'t str>) -> Result<Permit<Administer<'t>>, String> {
    let operator = Arc::new(Principal::operator(context.config().tenant_id.clone()));
    let asked = context.shared.policy().authorize(&operator, Administer { tenant });
    asked.map_err(|reason| reason.text(operator.tenant().as_str()))
}

fn json(report: &impl serde::Serialize) -> Result<String, String> {
    serde_json::to_string(report).map_err(|error| error.to_string())
}
