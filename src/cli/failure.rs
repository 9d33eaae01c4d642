//! How a command fails: one line, a hint, an exit code.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

/// An error with what the user can do about it and the exit code it means.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

/// A mistake in how the command was called, found after parsing; exit code 2.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
    Failure { message: message.into(), hint: Some(hint.into()), code: 2 }.into()
}

/// Adds a hint to an error.
pub(crate) trait WithHint<T> {
    /// The same result; an error becomes a [`Failure`] that carries `hint`.
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithHint<T> for Result<T, E> {
    fn hint(self, hint: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|error| {
            let error = error.into();
            if error.is::<Failure>() || error.is::<super::output::PipeClosed>() {
                return error;
            }
            Failure { message: format!("{error:#}"), hint: Some(hint.into()), code: 1 }.into()
        })
    }
}

/// Prints the error as the user sees it and returns its exit code. The reader of standard output having gone away is
/// the ordinary end of a pipe, not a failure.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|cause| cause.is::<super::output::PipeClosed>()) {
        return ExitCode::SUCCESS;
    }
    // Several mistakes found at once are several lines, each a sentence of its own.
    for line in format!("{error:#}").lines() {
        super::output::complain("error", line);
    }
    let failure = error.downcast_ref::<Failure>();
    if let Some(hint) = failure.and_then(|f| f.hint.as_deref()) {
        super::output::complain("hint", hint);
    }
    ExitCode::from(failure.map_or(1, |f| f.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_keeps_the_whole_chain_in_one_message() {
        let inner: anyhow::Result<()> = Err(anyhow::anyhow!("no such file").context("cannot read 'x'"));
        let error = inner.hint("create it").unwrap_err();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.message, "cannot read 'x': no such file");
        assert_eq!((failure.hint.as_deref(), failure.code), (Some("create it"), 1));
    }

    #[test]
    fn the_first_hint_and_code_win() {
        let error = Err::<(), _>(usage("wrong", "right")).hint("other").unwrap_err();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!((failure.hint.as_deref(), failure.code), (Some("right"), 2));
    }
}
