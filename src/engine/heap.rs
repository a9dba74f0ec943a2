//! How large the heap of a database on the JVM is: what the user wrote, else what the database's
//! rule makes of the memory limit.

use crate::{api::v1beta1::Jvm, machinery::quantity};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// Smallest heap that is accepted, in bytes. Measured: one database ends in OutOfMemoryError at 48
/// MiB, another starts with 96 MiB.
const SMALLEST: u64 = 128 * MIB;

/// Why no heap can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    #[error("spec.jvm.heap {0:?} is not a quantity")]
    NotAQuantity(String),
    #[error("a heap of {heap} bytes does not fit the memory limit of {limit} bytes")]
    OverTheLimit { heap: u64, limit: u64 },
    #[error("a heap of {0} bytes is too small for a database, which needs 128Mi at least")]
    TooSmall(u64),
}

/// Chooses the heap in bytes: what the user wrote, else what `rule` makes of `memory_limit`, else 1
/// GiB.
pub fn choose_heap(
    jvm: Option<&Jvm>,
    memory_limit: Option<u64>,
    rule: impl Fn(u64) -> u64,
) -> Result<u64, HeapError> {
    let heap = match (jvm.and_then(|jvm| jvm.heap.as_ref()), memory_limit) {
        (Some(spec_heap), _) => quantity::parse_units(&spec_heap.0)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .ok_or_else(|| HeapError::NotAQuantity(spec_heap.0.clone()))?,
        (None, Some(limit)) => rule(limit),
        (None, None) => GIB,
    };
    if let Some(limit) = memory_limit.filter(|limit| heap >= *limit) {
        return Err(HeapError::OverTheLimit { heap, limit });
    }
    if heap < SMALLEST {
        return Err(HeapError::TooSmall(heap));
    }
    Ok(heap)
}
