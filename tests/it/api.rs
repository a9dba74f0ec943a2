//! The API as a library: conversion, corpus, samples.

mod conversion;
mod corpus;
mod generate;
mod reference;
mod rules;
mod versions;
