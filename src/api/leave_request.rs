//! Requests that a node leave its machine, as annotations of Pilots.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names::annotation::LEAVE;

/// A request that the node of a Pilot leave its machine. It is bound to one pod, so nothing that is
/// stale can move a later pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaveRequest {
    /// Uid of the pod.
    pub pod: String,
    /// Who asks, in words of their own; may be empty.
    pub by: String,
}

impl LeaveRequest {
    /// Returns the request that a Pilot's metadata hold.
    pub fn from_metadata(meta: &ObjectMeta) -> Option<Self> {
        let text = meta.annotations.as_ref()?.get(LEAVE)?.trim();
        let (pod, by) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (pod, by) = (pod.to_owned(), by.trim().to_owned());
        (!pod.is_empty()).then_some(Self { pod, by })
    }
}

impl fmt::Display for LeaveRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, by } = self;
        f.write_str(pod)?;
        if by.is_empty() { Ok(()) } else { write!(f, " {by}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_pod_and_who_asks() {
        let read = |text: &str| {
            let annotations = Some([(LEAVE.to_owned(), text.to_owned())].into());
            LeaveRequest::from_metadata(&ObjectMeta { annotations, ..ObjectMeta::default() })
        };
        let request = |pod: &str, by: &str| Some(LeaveRequest { pod: pod.into(), by: by.into() });
        assert_eq!(read("uid-1 drain of m-3"), request("uid-1", "drain of m-3"));
        assert_eq!(read(" uid-1 "), request("uid-1", ""));
        for nothing in ["", "  "] {
            assert_eq!(read(nothing), None);
        }
        for text in ["uid-1", "uid-1 a person"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(LeaveRequest::from_metadata(&ObjectMeta::default()), None);
    }
}
