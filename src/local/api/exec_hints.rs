//! What a user can do instead of `kubectl exec`, `attach` and `port-forward`. They need an upgraded
//! connection, which is never served: identity is per request.

use crate::apiserver::request_info::RequestInfo;

/// Returns one line that tells a user of kubectl what to do instead; `None` for other requests.
pub(super) fn exec_hint(info: &RequestInfo) -> Option<&'static str> {
    let operation = info.operation.as_ref()?;
    if !operation.group.is_empty() || operation.resource != "pods" {
        return None;
    }
    match operation.subresource.as_str() {
        "exec" | "attach" => Some(
            "there is no exec on a host without containers: run the program on this machine, with \
             the node's address of `navigator local status`; `navigator local logs POD` shows \
             what the node says",
        ),
        "portforward" => Some(
            "there is no port-forward on a host without containers: the node's ports are open on \
             this machine, at its address of `navigator local status`",
        ),
        _ => None,
    }
}
