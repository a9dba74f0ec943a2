//! `kubectl navigator`: its screens, its help, its answers and exit codes, its completion.

mod answers;
mod completion;
mod console;
mod drain;
mod help;
mod machines;
mod screens;
mod secured;
