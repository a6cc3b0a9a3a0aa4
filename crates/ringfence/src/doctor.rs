//! What each backend can do here, with the evidence.
