//! Quota: taken up the whole line, given back by tallies, never leaked and never more than there is.

use std::{collections::BTreeMap, time::Duration};

use api::{
    EdgeId,
    iam::{Amount, Dimension, Tally},
    spec::SandboxSpec,
};
use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn sandboxes(count: u64) -> Amount {
    Amount::of(&SandboxSpec::new("debian"), count)
}

fn edge(n: usize) -> EdgeId {
    format!("e{n}").parse().unwrap()
}

async fn used(iam: &Iam, by: &Principal, path: &str) -> u64 {
    iam.project_inspect(by, path).await.unwrap().used.get(Dimension::Sandboxes)
}

#[tokio::test]
async fn it_is_taken_from_all_above_or_from_none() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(
        &owner,
        &ProjectRequest { quota: quota(r#"{"sandboxes":5}"#), ..project("a", "root") },
    )
    .await
    .unwrap();
    let one = iam.project_create(&owner, &project("one", "root/a")).await.unwrap();
    let two = ProjectRequest { quota: quota(r#"{"containers":2}"#), ..project("two", "root/a") };
    let two = iam.project_create(&owner, &two).await.unwrap();
    let first = iam.reserve(&one.id, &sandboxes(3), MINUTE).await.unwrap();
    let refused = iam.reserve(&two.id, &sandboxes(3), MINUTE).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert!(
        refused.message.contains("containers: project `root/a/two` may have 2, has 0, and this takes 3"),
        "{refused}"
    );
    iam.reserve(&two.id, &sandboxes(2), MINUTE).await.unwrap();
    let refused = iam.reserve(&one.id, &sandboxes(1), MINUTE).await.unwrap_err();
    assert!(refused.message.contains("sandboxes: project `root/a` may have 5, has 5"), "{refused}");
    assert_eq!((used(&iam, &owner, "root").await, used(&iam, &owner, "root/a/one").await), (5, 3));
    iam.cancel(&first).await.unwrap();
    iam.cancel(&first).await.unwrap();
    assert_eq!((used(&iam, &owner, "root").await, used(&iam, &owner, "root/a/one").await), (2, 0));
    assert_eq!(iam.reserve("pr-nope", &sandboxes(1), MINUTE).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test]
async fn a_tally_takes_the_place_of_what_it_finished() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    let project = iam.project_create(&owner, &project("a", "root")).await.unwrap();
    let first = iam.reserve(&project.id, &sandboxes(10), MINUTE).await.unwrap();
    let second = iam.reserve(&project.id, &sandboxes(4), MINUTE).await.unwrap();
    let told = |sequence, count, finished: &[&str]| Tally {
        started_ms: 1,
        sequence,
        projects: vec![(project.id.clone(), sandboxes(count))],
        working: Vec::new(),
        finished: finished.iter().map(|id| (*id).to_owned()).collect(),
    };
    // Two of ten have failed; the other request is still at work.
    assert!(iam.tally(&edge(1), &told(1, 8, &[&first.id])).await.unwrap());
    assert_eq!(used(&iam, &owner, "root/a").await, 12);
    assert!(!iam.tally(&edge(1), &told(1, 3, &[])).await.unwrap(), "said already");
    assert!(iam.tally(&edge(2), &told(1, 1, &[])).await.unwrap(), "another edge");
    assert_eq!(used(&iam, &owner, "root").await, 13);
    assert!(iam.tally(&edge(1), &told(2, 12, &[&first.id, &second.id])).await.unwrap());
    assert_eq!(used(&iam, &owner, "root/a").await, 13);
    // A new process of the edge begins its numbers anew.
    let anew = Tally { started_ms: 2, ..told(1, 5, &[]) };
    assert!(iam.tally(&edge(1), &anew).await.unwrap());
    assert!(!iam.tally(&edge(1), &told(9, 12, &[])).await.unwrap(), "the old one is late");
    assert_eq!(used(&iam, &owner, "root/a").await, 6);
    assert_eq!(iam.project_remove(&owner, "root/a").await.unwrap_err().code, Code::Conflict);
    for n in [1, 2] {
        iam.tally(&edge(n), &Tally { started_ms: 3, sequence: 1, ..Tally::default() }).await.unwrap();
    }
    iam.project_remove(&owner, "root/a").await.unwrap();
    let unknown = Tally { started_ms: 4, ..told(1, 7, &[]) };
    assert!(iam.tally(&edge(1), &unknown).await.unwrap(), "what nobody knows is counted for nobody");
    assert_eq!(used(&iam, &owner, "root").await, 0);
}

#[tokio::test]
async fn a_reservation_that_nobody_finishes_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.reserve(ROOT_PROJECT, &sandboxes(2), Duration::from_millis(1)).await.unwrap();
    iam.reserve(ROOT_PROJECT, &sandboxes(3), MINUTE).await.unwrap();
    drop(iam);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let iam = open(&directory).await;
    assert_eq!(used(&iam, &owner, "root").await, 5);
    assert_eq!(iam.sweep_reservations().await.unwrap(), 1);
    assert_eq!((iam.sweep_reservations().await.unwrap(), used(&iam, &owner, "root").await), (0, 3));
    // One that an edge works on goes on.
    let short = iam.reserve(ROOT_PROJECT, &sandboxes(1), Duration::from_millis(20)).await.unwrap();
    let working = Tally { started_ms: 1, sequence: 1, working: vec![short.id], ..Tally::default() };
    iam.tally(&edge(1), &working).await.unwrap();
    tokio::time::sleep(Duration::from_millis(25)).await;
    assert_eq!((iam.sweep_reservations().await.unwrap(), used(&iam, &owner, "root").await), (0, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_never_take_more_than_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    iam.project_create(
        &owner,
        &ProjectRequest { quota: quota(r#"{"sandboxes":50}"#), ..project("a", "root") },
    )
    .await
    .unwrap();
    let mut children = Vec::new();
    for name in ["one", "two", "three", "four"] {
        children.push(iam.project_create(&owner, &project(name, "root/a")).await.unwrap().id);
    }
    // Two processes on one store.
    let other = open(&directory).await;
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let (iam, child) =
                (if n % 2 == 0 { iam.clone() } else { other.clone() }, children[n % 4].clone());
            tokio::spawn(async move { iam.reserve(&child, &sandboxes(1), MINUTE).await.is_ok() })
        })
        .collect();
    let mut taken = 0;
    for task in tasks {
        taken += u64::from(task.await.unwrap());
    }
    assert_eq!((taken, used(&iam, &owner, "root/a").await), (50, 50));
}

/// What happens to a store in a random run.
#[derive(Debug, Clone)]
enum Step {
    Reserve {
        project: usize,
        count: u64,
    },
    Cancel {
        which: prop::sample::Index,
    },
    /// The edge takes a reservation up, makes some of it, and tells of it at its next tally.
    Finish {
        which: prop::sample::Index,
        edge: usize,
        made: u64,
    },
    End {
        edge: usize,
        project: usize,
        count: u64,
    },
    Tally {
        edge: usize,
    },
    Bound {
        project: usize,
        bound: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (0..4_usize, 1..5_u64).prop_map(|(project, count)| Step::Reserve { project, count }),
        1 => index().prop_map(|which| Step::Cancel { which }),
        3 => (index(), 0..2_usize, 0..5_u64).prop_map(|(which, edge, made)| Step::Finish { which, edge, made }),
        2 => (0..2_usize, 0..4_usize, 1..5_u64).prop_map(|(edge, project, count)| Step::End { edge, project, count }),
        3 => (0..2_usize).prop_map(|edge| Step::Tally { edge }),
        1 => (0..4_usize, 0..12_u64).prop_map(|(project, bound)| Step::Bound { project, bound }),
    ]
}

/// The truth beside the store: root <- a <- b, root <- c.
#[derive(Default)]
struct Model {
    open: Vec<(usize, u64, Reservation)>,
    /// What lives, by edge and project.
    lives: BTreeMap<(usize, usize), u64>,
    told: BTreeMap<(usize, usize), u64>,
    /// Finished at the edge, and not told of.
    finished: BTreeMap<usize, Vec<(usize, u64, String)>>,
    sequence: u64,
}

const ABOVE: [&[usize]; 4] = [&[0], &[0, 1], &[0, 1, 2], &[0, 3]];

impl Model {
    /// What the store must say that a project uses.
    fn used(&self, project: usize) -> u64 {
        let below = |of: &usize| ABOVE[*of].contains(&project);
        let open: u64 = self.open.iter().filter(|(of, ..)| below(of)).map(|(_, count, _)| count).sum();
        let finished = self.finished.values().flatten();
        let finished: u64 = finished.filter(|(of, ..)| below(of)).map(|(_, count, _)| count).sum();
        let told: u64 = self.told.iter().filter(|((_, of), _)| below(of)).map(|(_, count)| count).sum();
        open + finished + told
    }

    /// What lives in it and below.
    fn alive(&self, project: usize) -> u64 {
        self.lives.iter().filter(|((_, of), _)| ABOVE[*of].contains(&project)).map(|(_, count)| count).sum()
    }
}

#[test]
fn any_run_adds_up_and_quiet_leaks_nothing() {
    let config = ProptestConfig { cases: 40, ..ProptestConfig::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let steps = prop::collection::vec(step(), 1..40);
    TestRunner::new(config)
        .run(&steps, |steps| runtime.block_on(async { run(steps).await.map_err(TestCaseError::fail) }))
        .unwrap();
}

async fn run(steps: Vec<Step>) -> std::result::Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let (iam, owner) = owned(&directory).await;
    let mut ids = vec![ROOT_PROJECT.to_owned()];
    for (name, parent) in [("a", "root"), ("b", "root/a"), ("c", "root")] {
        ids.push(iam.project_create(&owner, &project(name, parent)).await.unwrap().id);
    }
    let (mut model, mut bounds) = (Model::default(), [None; 4]);
    for step in steps {
        apply(&iam, &owner, &ids, step, &mut model, &mut bounds).await?;
        for (n, id) in ids.iter().enumerate() {
            let said = iam.project_inspect(&owner, id).await.unwrap().used.get(Dimension::Sandboxes);
            if said != model.used(n) {
                return Err(format!("project {n}: the store says {said}, it is {}", model.used(n)));
            }
            if model.alive(n) > said {
                return Err(format!("project {n}: {} live, and {said} are counted", model.alive(n)));
            }
        }
    }
    // All ends, all is told.
    model.lives.clear();
    for (_, _, reservation) in std::mem::take(&mut model.open) {
        iam.cancel(&reservation).await.unwrap();
    }
    for edge in 0..2 {
        tell(&iam, &ids, edge, &mut model).await;
    }
    for id in &ids {
        let left = iam.project_inspect(&owner, id).await.unwrap().used;
        if !left.is_nothing() {
            return Err(format!("{left:?} is leaked"));
        }
    }
    Ok(())
}

async fn apply(
    iam: &Iam,
    owner: &Principal,
    ids: &[String],
    step: Step,
    model: &mut Model,
    bounds: &mut [Option<u64>; 4],
) -> std::result::Result<(), String> {
    match step {
        Step::Reserve { project, count } => {
            let fits =
                ABOVE[project].iter().all(|n| bounds[*n].is_none_or(|bound| model.used(*n) + count <= bound));
            match (iam.reserve(&ids[project], &sandboxes(count), MINUTE).await, fits) {
                (Ok(reservation), true) => model.open.push((project, count, reservation)),
                (Err(error), false) if error.code == Code::QuotaExceeded => {}
                (result, _) => return Err(format!("fits: {fits}, and it was {result:?}")),
            }
        }
        Step::Cancel { which } if !model.open.is_empty() => {
            let (_, _, reservation) = model.open.swap_remove(which.index(model.open.len()));
            iam.cancel(&reservation).await.unwrap();
        }
        Step::Finish { which, edge, made } if !model.open.is_empty() => {
            let (project, count, reservation) = model.open.swap_remove(which.index(model.open.len()));
            *model.lives.entry((edge, project)).or_default() += made.min(count);
            model.finished.entry(edge).or_default().push((project, count, reservation.id));
        }
        Step::End { edge, project, count } => {
            let lives = model.lives.entry((edge, project)).or_default();
            *lives = lives.saturating_sub(count);
        }
        Step::Tally { edge } => tell(iam, ids, edge, model).await,
        Step::Bound { project, bound } => {
            // Refused where the parent has less; then nothing changes.
            let update = bounded(&format!(r#"{{"sandboxes":{bound}}}"#));
            if iam.project_update(owner, &ids[project], &update).await.is_ok() {
                bounds[project] = Some(bound);
            }
        }
        Step::Cancel { .. } | Step::Finish { .. } => {}
    }
    Ok(())
}

async fn tell(iam: &Iam, ids: &[String], at: usize, model: &mut Model) {
    model.sequence += 1;
    let lives = model.lives.iter().filter(|((edge, _), count)| *edge == at && **count > 0);
    let projects = lives.map(|((_, project), count)| (ids[*project].clone(), sandboxes(*count))).collect();
    let finished = model.finished.remove(&at).unwrap_or_default().into_iter().map(|(_, _, id)| id).collect();
    let tally = Tally { started_ms: 1, sequence: model.sequence, projects, working: Vec::new(), finished };
    assert!(iam.tally(&edge(at), &tally).await.unwrap());
    model.told.retain(|(edge, _), _| *edge != at);
    let lives: Vec<_> =
        model.lives.iter().filter(|((edge, _), _)| *edge == at).map(|(k, v)| (*k, *v)).collect();
    model.told.extend(lives);
}
