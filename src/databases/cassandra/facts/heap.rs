//! How large Cassandra's heap is.

use crate::{
    api::v1beta1::Jvm,
    engine::heap::{self, GIB, HeapError},
};

/// Returns the heap in bytes: what the user wrote, else `max(min(½ limit, 1Gi), min(¼ limit,
/// 8Gi))`.
pub fn heap_bytes(jvm: Option<&Jvm>, memory_limit: Option<u64>) -> Result<u64, HeapError> {
    heap::choose_heap(jvm, memory_limit, |limit| (limit / 2).min(GIB).max((limit / 4).min(8 * GIB)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::engine::heap::MIB;

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
