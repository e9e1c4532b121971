//! Reading a data directory without a broker: `dump` and `verify`.
