//! Many candidates, for hours, on a clock that the test owns: answers are lost and late, writes
//! arrive after their sender gave up, the server goes away, processes are stopped and continued.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use kube::core::Status;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::sync::oneshot;

use super::*;
use crate::runtime::TaskGroup;

/// A lease on a server far away. Every request takes its own time and may end in silence.
#[derive(Clone)]
struct Server {
    stored: Arc<Mutex<Stored>>,
    tasks: TaskGroup,
}

struct Stored {
    lease: Option<(u64, LeaseRecord)>,
    away_until: Instant,
    chaos: bool,
    random: StdRng,
}

/// What becomes of one request.
struct Fate {
    there: Duration,
    back: Duration,
    heard: bool,
    answered: bool,
}

impl Server {
    fn new(seed: u64, tasks: TaskGroup) -> Self {
        let stored = Stored {
            lease: None,
            away_until: Instant::now(),
            chaos: true,
            random: StdRng::seed_from_u64(seed),
        };
        Self { stored: Arc::new(Mutex::new(stored)), tasks }
    }

    fn draw_fate(&self) -> Fate {
        let mut stored = self.stored.lock().unwrap();
        let (is_away, chaos) = (Instant::now() < stored.away_until, stored.chaos);
        let random = &mut stored.random;
        if !chaos {
            let trip = Duration::from_millis(5);
            return Fate { there: trip, back: trip, heard: true, answered: true };
        }
        let mut trip = || {
            let is_slow = random.random_bool(0.03);
            Duration::from_millis(random.random_range(0..if is_slow { 30_000 } else { 400 }))
        };
        let (there, back) = (trip(), trip());
        let is_heard = !is_away && random.random_bool(0.95);
        Fate { there, back, heard: is_heard, answered: random.random_bool(0.95) }
    }

    /// Carries a request through its fate, also when the candidate no longer waits for the answer.
    async fn send_request<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Stored) -> T + Send + 'static,
    ) -> kube::Result<T> {
        let fate = self.draw_fate();
        let (answer, receiver) = oneshot::channel();
        let server = self.stored.clone();
        self.tasks.spawn("request", async move {
            sleep(fate.there).await;
            let result = fate.heard.then(|| operation(&mut server.lock().unwrap()));
            sleep(fate.back).await;
            if let Some(result) = result.filter(|_| fate.answered) {
                drop(answer.send(result));
            }
        });
        // The connection breaks, or hangs until the candidate's own timeout.
        receiver.await.map_err(|_| api_error(500))
    }
}

fn api_error(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status { code, ..Status::default() }))
}

impl LeaseStore for Server {
    type Object = (u64, LeaseRecord);

    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn read_lease(&self) -> kube::Result<Option<(u64, LeaseRecord)>> {
        self.send_request(|stored| stored.lease.clone()).await
    }

    fn lease_record(object: &(u64, LeaseRecord)) -> LeaseRecord {
        object.1.clone()
    }

    fn object_version(object: &(u64, LeaseRecord)) -> String {
        object.0.to_string()
    }

    async fn swap_record(
        &self,
        read: Option<(u64, LeaseRecord)>,
        record: LeaseRecord,
    ) -> kube::Result<(u64, LeaseRecord)> {
        let swap_result = self.send_request(move |stored| {
            let version = |lease: &Option<(u64, LeaseRecord)>| lease.as_ref().map(|(at, _)| *at);
            let is_current = version(&stored.lease) == version(&read);
            is_current.then(|| {
                let new_lease = (version(&read).unwrap_or_default() + 1, record);
                stored.lease.insert(new_lease).clone()
            })
        });
        swap_result.await?.ok_or_else(|| api_error(409))
    }
}

/// Polls `work`, but not while its process is stopped (SIGSTOP), whatever became ready.
async fn run_stoppable(work: impl Future<Output = ()>, stopped_until: Arc<Mutex<Instant>>) {
    let mut work = pin!(work);
    let mut alarm = pin!(sleep(Duration::ZERO));
    poll_fn(|context| {
        let until = *stopped_until.lock().unwrap();
        if Instant::now() < until {
            alarm.as_mut().reset(until);
            if alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        work.as_mut().poll(context)
    })
    .await;
}

/// Runs one candidate: it leads, loses, withdraws and stands again until `end`.
async fn run_candidate(
    server: Server,
    name: String,
    claim: watch::Sender<LeaderClaim>,
    end: Shutdown,
) {
    let mut elector = LeaderElector::new(server.clone(), ElectionConfig::new(name));
    while !end.is_triggered() {
        let reign = end.child();
        let patience = {
            let mut stored = server.stored.lock().unwrap();
            Duration::from_secs(stored.random.random_range(1..300))
        };
        let withdraws = async {
            if server.stored.lock().unwrap().chaos {
                sleep(patience).await;
                reign.trigger();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = elector.run(&claim, reign.clone()) => {}
            () = withdraws => {}
        }
    }
}

/// Returns how many reigns there were in the half hour of faults.
async fn run_simulation(seed: u64) -> usize {
    const CANDIDATES: usize = 5;
    let (end, tasks) = (Shutdown::new(), TaskGroup::new(Shutdown::new()));
    let server = Server::new(seed, tasks.clone());
    let mut claims = Vec::new();
    let mut stops = Vec::new();
    for number in 0..CANDIDATES {
        let (sender, claim) = watch::channel(LeaderClaim::Waiting);
        let stopped = Arc::new(Mutex::new(Instant::now()));
        let work =
            run_candidate(server.clone(), format!("candidate-{number}"), sender, end.clone());
        tasks.spawn("candidate", run_stoppable(work, stopped.clone()));
        claims.push(claim);
        stops.push(stopped);
    }
    let mut reigns: Vec<(i32, usize)> = Vec::new();
    let mut random = StdRng::seed_from_u64(seed ^ 0x5eed);
    let count_leaders = |reigns: &mut Vec<(i32, usize)>| {
        let mut leaders = Vec::new();
        for (number, claim) in claims.iter().enumerate() {
            let claim = *claim.borrow();
            if let LeaderClaim::Held { transition, .. } = claim
                && claim.is_held()
            {
                leaders.push(number);
                if reigns.last() != Some(&(transition, number)) {
                    reigns.push((transition, number));
                }
            }
        }
        assert!(leaders.len() <= 1, "seed {seed}: {leaders:?} lead at once; {reigns:?}");
        leaders.len()
    };
    let chaos_ends = Instant::now() + Duration::from_secs(1800);
    while Instant::now() < chaos_ends {
        sleep(Duration::from_millis(50)).await;
        count_leaders(&mut reigns);
        if random.random_bool(0.001) {
            let stop = Duration::from_secs(random.random_range(1..60));
            *stops[random.random_range(0..CANDIDATES)].lock().unwrap() = Instant::now() + stop;
        }
        if random.random_bool(0.0005) {
            let outage = Duration::from_secs(random.random_range(1..60));
            server.stored.lock().unwrap().away_until = Instant::now() + outage;
        }
    }
    let count = reigns.len();
    // Numbers of reigns only grow: a reign with a higher number came later.
    assert!(reigns.windows(2).all(|pair| pair[0].0 < pair[1].0), "seed {seed}: {reigns:?}");

    // With all faults over, one of the candidates leads.
    server.stored.lock().unwrap().chaos = false;
    let healed_at = Instant::now();
    while count_leaders(&mut reigns) == 0 {
        assert!(healed_at.elapsed() < Duration::from_secs(400), "seed {seed}: nobody leads");
        sleep(Duration::from_millis(50)).await;
    }
    end.trigger();
    tasks.join().await;
    count
}

mod searches {
    use super::run_simulation;
    use crate::testing::search_seeds;

    #[tokio::test(start_paused = true)]
    async fn no_two_of_five_candidates_ever_lead_at_once_through_random_pauses_and_losses() {
        // The pauses of candidates are random: one walk may have few reigns, all together do not.
        let (mut walks, mut reigns) = (0, 0);
        for seed in search_seeds(8) {
            walks += 1;
            reigns += run_simulation(seed).await;
        }
        assert!(reigns > 5 * walks, "only {reigns} reigns in {walks} walks");
    }
}
