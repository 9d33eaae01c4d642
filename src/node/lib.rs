//! The Glocal broker: configuration, TLS, listeners, sessions, bridges, telemetry.
