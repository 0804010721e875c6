//! Tests of the index: a model check, the form of trees, and memory.

mod form;
mod hostile;
mod model;
