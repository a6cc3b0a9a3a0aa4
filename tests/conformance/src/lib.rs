//! Every promise on every backend.
