//! The API as a library: conversion, corpus, samples.

pub(crate) mod containership;
mod conversion;
mod corpus;
mod defaults;
mod generate;
mod legacy;
mod openapi;
mod ownership;
pub(crate) mod protobuf;
mod reference;
mod rules;
mod schemas;
mod strict;
mod versions;
