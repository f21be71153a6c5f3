//! The whole service, in this process.
