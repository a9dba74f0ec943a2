//! Cassandra under whole pilots, against a real API server.
//!
//! `ring` is hosts and an API, `client` writes and remembers; every other file is a scenario.

mod cleanup;
mod client;
mod faults;
mod forgotten;
mod full_disk;
mod joins;
mod kept;
mod leaving;
mod life;
mod login;
mod older;
mod refused;
mod ring;
mod rounds;
mod secure;
mod tmpfs;
mod two_lost;
mod unheard;
pub(crate) mod upgrade;

pub(crate) use self::{
    cleanup::deleted_rows_stay_dead_after_a_cleanup_and_come_back_without,
    faults::a_node_comes_back_from_every_fault,
    forgotten::a_lost_node_is_forgotten,
    full_disk::a_full_disk_is_told_and_waited_for,
    joins::joins_that_are_cut_off_begin_anew,
    kept::a_cluster_is_made_again_on_all_some_and_none_of_its_volumes,
    leaving::{
        a_node_stays_where_the_rest_has_no_room, departures_that_are_cut_off_go_on_to_their_end,
    },
    life::three_nodes_live_through_an_outage_and_one_leaves,
    login::roles_are_made_and_read_by_the_pilots_client,
    older::older_releases_found_join_and_return,
    rounds::rings_are_founded_once_and_a_lost_volume_is_replaced,
    secure::{a_ring_begins_secured, a_secured_ring_lives},
    two_lost::two_of_three_nodes_are_lost_and_replaced,
    unheard::what_is_not_heard_lets_nothing_go,
};

const VERSION: &str = "5.0.6";
