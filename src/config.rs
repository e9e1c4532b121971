//! What the flags of `serve` mean.
