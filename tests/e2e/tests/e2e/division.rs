//! A cell divides while its partners order. The new cell is a real streaming standby, whose stages
//! run before the cut. Both cells buy from one sandbox, whose ledger shows whether anything was
//! bought twice.
//!
//! - [`cells`]: the two cells, and what happens to their servers and to the command.
//! - [`load`]: the clients of a partner.
//! - [`stalls`]: processes that stand still during a division.

mod cells;
mod load;
mod stalls;

use crate::shop::{Shop, bought_once, size};
use anyhow::{Context, Result, ensure};
use cells::{Cells, FAST, Fault, Owner, SETTLE, SLOW, cancel, divide};
use load::{Load, code};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::stack::Stored;
use testkit::wait;

/// How much later than a webhook its answer may be noticed here, although it was sent before.
const NOTICED: Duration = Duration::from_millis(500);

/// What is special about a division.
struct Case<'a> {
    owner: Owner,
    /// The number of finished orders, of which one step of a purge deletes 500.
    stored: u64,
    /// The number of orders that each partner makes before the division.
    before: usize,
    workers: usize,
    /// It is interrupted and taken back first.
    cancelled: bool,
    /// What happens after which step.
    faults: &'a [(&'a str, Fault)],
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            owner: Owner::Superuser,
            stored: 2_000,
            before: 40,
            workers: 4,
            cancelled: false,
            faults: &[],
        }
    }
}

/// Divides a cell with two partners under load, and compares what the clients, both databases, the
/// endpoints and the sandbox say.
async fn divides(case: Case<'_>) -> Result<()> {
    let Case {
        before, workers, ..
    } = case;
    let (cells, [leaving, staying]) = Cells::start(case.stored, case.owner, SETTLE).await?;
    let key = leaving.partner.access_key.clone();
    let loads = [Load::new(&cells, &leaving)?, Load::new(&cells, &staying)?];
    let operate = async {
        let enough = async || {
            let answered = |load: &Load| load.answered.lock().unwrap().len() >= before;
            Ok(loads.iter().all(answered).then_some(()))
        };
        wait::until(
            Duration::from_mins(20),
            "orders before the division",
            enough,
        )
        .await?;
        cells.a.set_faults(SLOW).await?;
        cells.refused(&cancel(&key), "does not divide").await?;
        if case.cancelled {
            cells.killed(&key, "frozen").await?;
            cells.suffer(&key, Fault::Paused).await?;
            cells.killed(&key, "the old cell does nothing").await?;
            cells.replay_the_fence().await?;
            cells.run(&cancel(&key)).await?;
            let again = cells.stored(&key).await?[0].len();
            let more = async || Ok((cells.stored(&key).await?[0].len() > again).then_some(()));
            wait::until(
                Duration::from_mins(1),
                "orders after it was taken back",
                more,
            )
            .await?;
        }
        for (step, fault) in case.faults {
            cells.killed(&key, step).await?;
            cells.suffer(&key, *fault).await?;
        }
        let divided = cells.run(&divide(&key)).await?;
        println!("{divided}");
        cells.a.set_faults(FAST).await?;
        let map = cells.run(&["cell", "map"]).await?;
        let map = map["map"].as_str().context("map")?;
        ensure!(map.contains(&format!("{key} ingress-b")), "{map}");
        let stays = format!("{} ingress-a", staying.partner.access_key);
        ensure!(map.contains(&stays), "{map}");
        loads[0].cell.store(1, Ordering::Relaxed);
        let [_, moved] = cells.stored(&key).await?;
        let ordered =
            async || Ok((cells.stored(&key).await?[1].len() > moved.len() + workers).then_some(()));
        wait::until(Duration::from_mins(2), "orders in the new cell", ordered).await?;
        for load in &loads {
            load.stop.store(true, Ordering::Relaxed);
        }
        anyhow::Ok(())
    };
    let (left, stayed, ()) =
        tokio::try_join!(loads[0].run(workers), loads[1].run(workers), operate)?;
    println!(
        "{} requests got 503; longest gap between two answers: {:?} of the leaving partner, {:?} of the staying one",
        loads[0].moving.load(Ordering::Relaxed),
        loads[0].longest_gap.lock().unwrap(),
        loads[1].longest_gap.lock().unwrap()
    );
    ensure!(
        loads[0].moving.load(Ordering::Relaxed) > 0 && loads[1].moving.load(Ordering::Relaxed) == 0,
        "the wrong partner was frozen"
    );
    sent_away(&cells, &leaving).await?;
    agree(
        &cells,
        [(&leaving, &loads[0], &left), (&staying, &loads[1], &stayed)],
    )
    .await?;
    if case.stored > 0 {
        cells.kill_a_purge("a").await?;
    }
    purged(&cells).await
}

/// Waits until everything is delivered in the cell in which its partner lives, and compares the
/// clients' orders with both databases, the sandbox's ledger and the endpoints.
async fn agree(cells: &Cells, partners: [(&Shop, &Load, &BTreeSet<String>); 2]) -> Result<()> {
    let mut placed = BTreeSet::new();
    for (cell, (shop, load, answered)) in [1, 0].into_iter().zip(partners) {
        let finished = async || {
            let stored = cells.stored(&shop.partner.access_key).await?;
            let stored = stored.into_iter().nth(cell).context("two cells")?;
            let done = |one: &Stored| {
                one.placement == "placed" && one.delivery.as_deref() == Some("delivered")
            };
            Ok(stored.iter().all(done).then_some(stored))
        };
        let stored = wait::until(Duration::from_mins(5), "every unit delivered", finished).await?;
        let external: BTreeSet<String> = stored
            .iter()
            .map(|one| one.external_order_id.clone())
            .collect();
        ensure!(external.len() == stored.len(), "an order is stored twice");
        ensure!(
            external == *answered,
            "{} answered, {} stored",
            answered.len(),
            external.len()
        );
        placed.extend(stored.iter().map(|one| one.placement_id.clone()));
        let topups: BTreeSet<String> = stored.iter().map(|one| one.topup_id.clone()).collect();
        let received = shop.delivered(&topups, Duration::from_mins(1)).await?;
        let answers = load.answered.lock().unwrap();
        let early = received.iter().filter(|webhook| {
            let answer = answers.get(webhook.topup_id());
            answer.is_some_and(|answer| webhook.at + NOTICED < *answer)
        });
        ensure!(early.count() == 0, "webhooks came before their 201");
    }
    let ledger = cells.a.ledger().await?;
    bought_once(&ledger)?;
    let sold: BTreeSet<String> = ledger.orders.into_iter().map(|one| one.order_id).collect();
    ensure!(
        sold == placed,
        "{} sold, {} placed; only sold: {:?}, only placed: {:?}",
        sold.len(),
        placed.len(),
        sold.difference(&placed).take(5).collect::<Vec<_>>(),
        placed.difference(&sold).take(5).collect::<Vec<_>>()
    );
    Ok(())
}

/// The old cell knows the partner, and sends it away. Its orders are found in the new one only.
async fn sent_away(cells: &Cells, shop: &Shop) -> Result<()> {
    let asked = cells.a.client(&shop.partner)?;
    let answer = asked.get("/api/v1/api_partner/account").send().await?;
    ensure!(
        answer.status == 503 && code(&answer) == "partner_moving",
        "{answer:?}"
    );
    ensure!(answer.headers.contains_key("retry-after"), "{answer:?}");
    let settings = cells.run(&["cell", "settings", "b"]).await?;
    ensure!(
        settings["settings"]["PROVIDER_RATE"] == 50 && settings["settings"]["CELL"] == "b",
        "{settings}"
    );
    Ok(())
}

/// An eSIM that was sold to partners of two cells is a fault, which `cell check` reports.
async fn check_finds_a_second_esim(cells: &Cells) -> Result<()> {
    let mut b = cells.b.database.connect().await?;
    let iccid: String =
        sqlx::query_scalar("SELECT iccid FROM esims WHERE iccid IS NOT NULL LIMIT 1")
            .fetch_one(&mut b)
            .await?;
    let mut a = cells.a.database.connect().await?;
    sqlx::query("INSERT INTO esims (topup_id, provider, provider_unit_id, iccid) VALUES ('1', 'sandbox', '1', $1)")
        .bind(&iccid)
        .execute(&mut a)
        .await?;
    let output = cells.esimctl(&["cell", "check"]).output().await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(1), "{said}");
    ensure!(said.contains(&iccid) && said.contains("(a, b)"), "{said}");
    Ok(())
}

/// `cell check` finds the copies until they are purged, and then nothing.
async fn purged(cells: &Cells) -> Result<()> {
    let found = cells.esimctl(&["cell", "check"]).output().await?;
    let said = String::from_utf8_lossy(&found.stdout);
    ensure!(found.status.code() == Some(1), "{said}");
    for cell in ["a", "b"] {
        ensure!(said.contains(&format!("cell purge {cell}")), "{said}");
        let args = ["cell", "purge", cell, "--reason", "test", "--yes"];
        let purged = cells.run(&args).await?;
        ensure!(purged["orders"].as_u64() > Some(0), "{purged}");
    }
    let checked = cells.run(&["cell", "check"]).await?;
    ensure!(
        checked["faults"].as_array().is_some_and(Vec::is_empty),
        "{checked}"
    );
    let left = "SELECT count(*) FROM orders o JOIN partners p USING (partner_id) WHERE p.moved_to IS NOT NULL";
    for stack in [&cells.a, &cells.b] {
        ensure!(
            stack.count(left).await? == 0,
            "orders of foreign partners are left"
        );
        let topups = "SELECT count(*) FROM topups t LEFT JOIN placements p USING (placement_id) WHERE p.placement_id IS NULL";
        ensure!(
            stack.count(topups).await? == 0,
            "units without a placement are left"
        );
    }
    check_finds_a_second_esim(cells).await
}

/// `DIVIDED_STORED` finished orders, and `DIVIDED_ORDERS` of each partner by `DIVIDED_IN_FLIGHT` clients
/// of each before the division. docs/scale.md has the result.
#[tokio::test]
async fn a_cell_divides_under_load() {
    let number = |size: u64| usize::try_from(size).unwrap();
    let case = Case {
        stored: size("DIVIDED_STORED", 2_000),
        before: number(size("DIVIDED_ORDERS", 60)),
        workers: number(size("DIVIDED_IN_FLIGHT", 6)),
        ..Case::default()
    };
    divides(case).await.unwrap();
}

/// The owner of the tables is no superuser here, so the policies bind the command, too, and somebody
/// else promotes the server.
#[tokio::test]
async fn a_division_goes_on_after_each_death_of_its_command_and_is_cancelled() {
    let kills = [
        ("frozen", Fault::Command),
        ("answers have left", Fault::Command),
        ("the old cell does nothing", Fault::Command),
        ("the standby has all", Fault::Command),
        ("promote the database of cell b now", Fault::Promoted),
        ("is a primary", Fault::Command),
        ("the new cell serves", Fault::Command),
    ];
    let case = Case {
        owner: Owner::Bound,
        stored: 0,
        cancelled: true,
        faults: &kills,
        ..Case::default()
    };
    divides(case).await.unwrap();
}

#[tokio::test]
async fn a_division_goes_on_after_each_death_of_a_server() {
    let deaths = [
        ("the old cell does nothing", Fault::Server(0)),
        ("the standby has all", Fault::Server(1)),
        ("is a primary", Fault::Server(0)),
        ("the new cell serves", Fault::Server(1)),
    ];
    let case = Case {
        faults: &deaths,
        ..Case::default()
    };
    divides(case).await.unwrap();
}

/// The new cell needs nothing of the old one after the fence. When the old one comes back, it finds
/// the partner hidden, and the command ends the division there.
#[tokio::test]
async fn a_division_goes_on_without_the_old_cell() {
    let lost = [
        ("frozen", Fault::Paused),
        ("the old cell does nothing", Fault::OldLost),
    ];
    let case = Case {
        faults: &lost,
        ..Case::default()
    };
    divides(case).await.unwrap();
}
