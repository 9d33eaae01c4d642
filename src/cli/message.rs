//! What the messaging commands share: message flags, and how a message is printed.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use glocal_client::{Headers, Message, Publish};
use glocal_core::name::Class;
use serde_json::{Map, Value};

use super::connect::seconds;
use super::output::{Out, base64, escape};

/// Flags of a message to send.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Message")]
pub(crate) struct MessageArgs {
    /// The class: live and tele are at most once; ctrl and bulk are acknowledged.
    #[arg(long, value_name = "CLASS", value_parser = class, default_value = "live")]
    class: Option<Class>,
    /// A header; repeat for more.
    #[arg(short = 'H', long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Seconds the message is worth delivering.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ttl: Option<Duration>,
}

impl MessageArgs {
    /// A message with these flags.
    pub(crate) fn publish(&self, subject: &str, payload: Vec<u8>) -> anyhow::Result<Publish> {
        let mut headers = Headers::new();
        for (name, value) in &self.header {
            headers.add(name, value).with_context(|| format!("header '{name}'"))?;
        }
        Ok(Publish { headers, class: self.class, ttl: self.ttl, ..Publish::new(subject, payload) })
    }
}

/// Parses a class's name.
pub(crate) fn class(text: &str) -> Result<Class, String> {
    Class::from_name(text).ok_or_else(|| "live, ctrl, tele or bulk is needed".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is needed")?;
    Headers::new().add(name, value).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// How messages are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `subject payload` on one line, escaped.
    Line,
    /// The payload on one line, escaped.
    Payload,
    /// The payload's bytes and a line end.
    Raw,
    /// One JSON object on one line.
    Json,
}

/// Prints one message.
pub(crate) fn print(out: &mut Out, message: &Message, form: Form) -> anyhow::Result<()> {
    match form {
        Form::Line => {
            out.bytes(escape(message.subject().as_bytes()).as_bytes())?;
            out.bytes(b" ")?;
            out.line(&escape(message.payload()))
        }
        Form::Payload => out.line(&escape(message.payload())),
        Form::Raw => {
            out.bytes(message.payload())?;
            out.bytes(b"\n")
        }
        Form::Json => out.json(&json(message)),
    }
}

fn json(message: &Message) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("subject", message.subject().into());
    put("class", message.class().as_str().into());
    match std::str::from_utf8(message.payload()) {
        Ok(text) => put("payload", text.into()),
        Err(_) => put("payload_base64", base64(message.payload()).into()),
    };
    if let Some(sender) = message.sender() {
        put("sender", sender.into());
    }
    if let Some(reply) = message.reply() {
        put("reply", reply.into());
    }
    if let Some(seq) = message.seq() {
        put("seq", seq.into());
    }
    if message.is_redelivered() {
        put("redelivered", true.into());
    }
    let headers = message.headers();
    if !headers.is_empty() {
        let pairs = headers.iter().map(|(name, value)| Value::from(vec![name, value]));
        put("headers", pairs.collect::<Vec<_>>().into());
    }
    Value::Object(object)
}

/// Tells scripts that subscriptions stand: a line on standard error, and a file when one is named.
pub(crate) fn tell_ready(file: Option<&Path>) -> anyhow::Result<()> {
    super::output::note("subscribed");
    if let Some(path) = file {
        std::fs::write(path, "subscribed\n").with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_checked_when_parsed() {
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        for bad in ["a", "=x", "a b=c", "a=x\ny"] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn classes_have_their_names() {
        assert_eq!(class("bulk"), Ok(Class::Bulk));
        assert!(class("Bulk").is_err() && class("").is_err());
    }
}
