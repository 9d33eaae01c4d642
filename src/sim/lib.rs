//! A seeded world of many Glocal cores and links, with checkers.
