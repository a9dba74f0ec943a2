//! How large Cassandra's heap is.

use crate::api::{quantity, v1beta1::Jvm};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Measured: a heap of 48 MiB ends in OutOfMemoryError while starting.
const SMALLEST: u64 = 128 * MIB;

/// Why no heap can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    #[error("spec.jvm.heap {0:?} is not a quantity")]
    NotAQuantity(String),
    #[error("a heap of {heap} bytes does not fit the memory limit of {limit} bytes")]
    OverTheLimit { heap: u64, limit: u64 },
    #[error("a heap of {0} bytes is too small for Cassandra, which needs 128Mi at least")]
    TooSmall(u64),
}

/// Heap in bytes: what the user wrote, else `max(min(½ limit, 1Gi), min(¼ limit, 8Gi))`, else
/// (no memory limit) 1 GiB.
pub fn heap_bytes(jvm: Option<&Jvm>, memory_limit: Option<u64>) -> Result<u64, HeapError> {
    let heap = match (jvm.and_then(|jvm| jvm.heap.as_ref()), memory_limit) {
        (Some(wanted), _) => quantity::units(&wanted.0)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .ok_or_else(|| HeapError::NotAQuantity(wanted.0.clone()))?,
        (None, Some(limit)) => (limit / 2).min(GIB).max((limit / 4).min(8 * GIB)),
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

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    #[test]
    fn the_heap_follows_the_memory_limit() {
        for (limit, heap) in [(1, 0.5), (2, 1.0), (4, 1.0), (8, 2.0), (32, 8.0), (64, 8.0)] {
            #[expect(clippy::cast_precision_loss, reason = "small numbers of GiB")]
            let got = heap_bytes(None, Some(limit * GIB)).unwrap() as f64 / GIB as f64;
            assert!((got - heap).abs() < f64::EPSILON, "{limit} GiB: {got}");
        }
        assert_eq!(heap_bytes(None, None), Ok(GIB));
    }

    #[test]
    fn an_impossible_heap_is_refused() {
        let jvm = |heap: &str| Jvm { heap: Some(Quantity(heap.to_owned())), options: Vec::new() };
        assert_eq!(heap_bytes(Some(&jvm("384Mi")), Some(GIB)), Ok(384 * MIB));
        assert_eq!(
            heap_bytes(Some(&jvm("1Gi")), Some(GIB)),
            Err(HeapError::OverTheLimit { heap: GIB, limit: GIB })
        );
        assert_eq!(heap_bytes(Some(&jvm("1M")), None), Err(HeapError::TooSmall(1_000_000)));
        assert!(matches!(heap_bytes(Some(&jvm("-1")), None), Err(HeapError::NotAQuantity(_))));
        assert_eq!(heap_bytes(None, Some(200 * MIB)), Err(HeapError::TooSmall(100 * MIB)));
    }
}
