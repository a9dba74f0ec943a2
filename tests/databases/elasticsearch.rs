//! Elasticsearch under whole pilots.
//!
//! `ensemble` is three seats and an API; the scenarios use it.

mod begun_anew;
mod bootstrap;
mod demo;
mod ensemble;
mod kept;
mod leaving;
mod plugins;
mod roles;
mod secure;
mod space;
mod split;
mod trouble;
mod unheard;
mod upgrade;
mod writer;

pub(crate) use self::{
    begun_anew::a_lost_quorum_is_begun_anew,
    bootstrap::{many_foundings, one_version},
    kept::a_cluster_is_made_again_on_all_some_and_none_of_its_volumes,
    leaving::a_departure_is_cut_off_in_every_way_and_ends,
    plugins::plugins_come_and_go,
    roles::a_data_role_goes,
    secure::a_secured_node,
    space::a_node_stays_where_the_rest_has_no_room,
    split::{a_node_is_cut_off_and_comes_back, the_master_hangs_and_is_cut_off},
    trouble::{a_hang, outage_and_bad_configuration},
    unheard::what_is_not_heard_lets_nothing_go,
    upgrade::node_by_node_over_three_major_versions,
};
