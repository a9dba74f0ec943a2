//! Columns and cells of `kubectl get cassandraclusters`.

use serde_json::Value;

use crate::{
    api::printer::{
        AGE, BLOCKED_BY, HEALTH, MESSAGE, NAME, NODES, OPERATION, PHASE, READY, TLS, VERSION,
        cluster_cells, pool_values, text_at, wide_column,
    },
    machinery::served_kind::PrinterColumn,
};

pub const COLUMNS: &[PrinterColumn] = &[
    NAME,
    READY,
    HEALTH,
    NODES,
    VERSION,
    PHASE,
    AGE,
    wide_column("Datacenters", "string", "Datacenters of the node pools."),
    TLS,
    OPERATION,
    BLOCKED_BY,
    MESSAGE,
];

/// Index of the one column that only Cassandra has.
const DATACENTERS: usize = 7;

pub fn build_cells(hub: &Value, now: i64) -> Vec<Value> {
    let mut cells = cluster_cells(hub, now);
    cells.insert(DATACENTERS, datacenter_names(hub).into());
    cells
}

fn datacenter_names(hub: &Value) -> String {
    let mut names: Vec<&str> = Vec::new();
    for pool in pool_values(hub) {
        let name = text_at(pool, "/datacenter");
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_column_has_its_cell() {
        let hub = json!({"spec": {"nodePools": [
            {"datacenter": "eu"}, {"datacenter": "us"}, {"datacenter": "eu"}]}});
        let cells = build_cells(&hub, 0);
        assert_eq!(cells.len(), COLUMNS.len());
        let place = COLUMNS.iter().position(|column| column.name == "Datacenters").unwrap();
        assert_eq!(cells[place], "eu,us");
    }
}
