//! Processes of the old cell stand still while it divides, and go on when the new one serves.

use super::agree;
use super::cells::{Cells, FAST, Owner, SLOW, divide};
use super::load::Load;
use crate::shop::fresh;
use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testkit::process::Process;
use testkit::stack::{Stage, Stored};
use testkit::{nats, wait};

const WORKERS: usize = 4;
/// Longer than the provisioner stands still. What it was about to send is sent when it goes on, and the new
/// cell waits for that long before it believes that a purchase was never made.
const SETTLE: &str = "60s";
/// Requests that reach the ingress while it stands still.
const LATE: usize = 6;
/// How long most conditions may take: a purchase whose outcome nobody knows is made again after `SETTLE`.
const LIMIT: Duration = Duration::from_mins(4);
/// Orders of the partner in `$1` that no provisioner has taken up, so that their jobs wait in NATS, and
/// purchases that are in flight.
const WAITING: &str = "SELECT count(*) FILTER (WHERE p.state = 'accepted') > 0 AND count(*) FILTER (WHERE p.state = 'placing') > 0
    FROM placements p JOIN partners a USING (partner_id) WHERE a.access_key = $1";

fn only(mut processes: Vec<Process>) -> Result<Process> {
    processes.pop().context("no process")
}

/// Waits until all of these orders of a partner are placed in a cell.
async fn placed(cells: &Cells, key: &str, cell: usize, orders: &BTreeSet<String>) -> Result<()> {
    wait::until(LIMIT, "purchases", async || {
        let stored = cells.stored(key).await?;
        let open =
            |one: &&Stored| orders.contains(&one.external_order_id) && one.placement != "placed";
        Ok((stored[cell].iter().find(open).is_none()).then_some(()))
    })
    .await
}

fn external(stored: &[Stored]) -> BTreeSet<String> {
    let ids = stored.iter().map(|one| one.external_order_id.clone());
    ids.collect()
}

/// The provisioner of the old cell stops with purchases in flight and jobs in its stream, and then the
/// ingress does. The cell divides, and both go on: the ingress with what it knew before the freeze, and
/// the provisioner with old jobs, and with purchases that it has recorded and not sent. The new cell ends
/// all of them.
async fn stand_still() -> Result<()> {
    let (mut cells, [leaving, staying]) = Cells::start(0, Owner::Superuser, SETTLE).await?;
    let ingress = only(cells.a.take_processes(Stage::Ingress))?;
    let provisioner = only(cells.a.take_processes(Stage::Provisioner))?;
    let key = leaving.partner.access_key.clone();
    let stays = staying.partner.access_key.clone();
    let loads = [Load::new(&cells, &leaving)?, Load::new(&cells, &staying)?];
    let operate = async {
        let begun = async || {
            let many = |load: &Load| load.answered.lock().unwrap().len() >= 20;
            Ok(loads.iter().all(many).then_some(()))
        };
        wait::until(LIMIT, "orders before the division", begun).await?;
        cells.a.set_faults(SLOW).await?;
        let mut database = cells.a.database.connect().await?;
        let in_flight = "SELECT count(*) > 0 FROM placements p JOIN partners a USING (partner_id)
                         WHERE a.access_key = $1 AND p.state = 'placing'";
        for (stop, waiting) in [(false, in_flight), (true, WAITING)] {
            if stop {
                provisioner.pause()?;
            }
            wait::until(LIMIT, "work that waits", async || {
                let query = sqlx::query_scalar(waiting).bind(&key);
                let waits: bool = query.fetch_one(&mut database).await?;
                Ok(waits.then_some(()))
            })
            .await?;
        }
        let stood_still = Instant::now();
        ingress.pause()?;
        let late: Vec<String> = (0..LATE).map(|_| fresh("late")).collect();
        let requests = late.iter().map(|id| {
            let client = cells.a.client(&leaving.partner);
            let option = loads[0].options[0].clone();
            let id = id.clone();
            tokio::spawn(async move { client?.order(&id, &[(option.as_str(), 1)]).await })
        });
        let requests: Vec<_> = requests.collect();
        println!("{}", cells.run(&divide(&key)).await?);
        cells.a.set_faults(FAST).await?;
        loads[0].cell.store(1, Ordering::Relaxed);
        let [_, left] = cells.stored(&key).await?;
        let left = external(&left);

        ensure!(
            stood_still.elapsed() < Duration::from_secs(45),
            "the division took as long as SETTLE"
        );
        ingress.resume()?;
        provisioner.resume()?;
        for request in requests {
            // On a slow machine the client may have given up.
            if let Ok(answer) = request.await? {
                ensure!(answer.status == 503, "{answer:?}");
            }
        }
        placed(&cells, &key, 1, &left).await?;
        let [before, _] = cells.stored(&stays).await?;
        placed(&cells, &stays, 0, &external(&before)).await?;
        for cell in cells.stored(&key).await? {
            let stored = external(&cell);
            let found = late.iter().find(|id| stored.contains(*id));
            ensure!(found.is_none(), "{found:?} is stored");
        }
        for load in &loads {
            load.stop.store(true, Ordering::Relaxed);
            // An ingress that stood still answers later than the webhooks may come.
            let mut answered = load.answered.lock().unwrap();
            answered.retain(|_, read| *read < stood_still);
        }
        anyhow::Ok(())
    };
    let (left, stayed, ()) =
        tokio::try_join!(loads[0].run(WORKERS), loads[1].run(WORKERS), operate)?;
    let operator = nats::connect(&std::env::var("TEST_NATS_URL")?).await?;
    let streams = async_nats::jetstream::new(operator);
    let jobs = format!("{}TOPUP_JOBS", cells.a.prefix);
    wait::until(LIMIT, "all jobs to be taken up", async || {
        let stream = streams.get_stream(&jobs).await?;
        let mut consumers = stream.consumers();
        let mut open = 0;
        while let Some(one) = consumers.try_next().await? {
            open += one.num_pending + u64::try_from(one.num_ack_pending)?;
        }
        Ok((open == 0).then_some(()))
    })
    .await?;
    agree(
        &cells,
        [(&leaving, &loads[0], &left), (&staying, &loads[1], &stayed)],
    )
    .await
}

#[tokio::test]
async fn what_stood_still_during_a_division_does_nothing_for_those_that_left() {
    stand_still().await.unwrap();
}
