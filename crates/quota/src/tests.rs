//! A model of a few targets and a ledger, with messages that arrive in any order.

use super::*;
use amphi_types::{Account, AccountKind, Amount, Limits, Nearness, Owner, TargetId};
use proptest::prelude::*;

const USER: Account = Account { kind: AccountKind::User, id: 7 };
const OWNER: Owner = Owner { uid: 7, gid: 8, project: 0 };

fn blocks(blocks: u64) -> Amount {
    Amount { blocks, inodes: 0 }
}

/// A target, and how often it was started.
type Run = (usize, u64);

/// A message under way.
#[derive(Clone, Debug)]
enum Sent {
    Ask { from: Run, used: Amount, wanted: Amount },
    Told { to: Run, account: Account, answer: Answer },
    Collect { to: usize, number: u64, round: usize },
    Collected { from: usize, number: u64, round: usize, used: Amount },
    Changed { to: usize, number: u64 },
}

/// A round of collecting, at whose end the target that asked is answered.
#[derive(Clone, Debug)]
struct Round {
    left: usize,
    from: Run,
    used: Amount,
    wanted: Amount,
}

struct Model {
    ledger: Ledger,
    shares: Vec<Shares>,
    used: Vec<u64>,
    runs: Vec<u64>,
    sent: Vec<Sent>,
    rounds: Vec<Round>,
    /// What the account may use: the limit, or more while targets have not been told of a lower one, and then what they
    /// used meanwhile.
    most: u64,
    /// The limit that some targets have not been told of, and the most that each target has used since it was set.
    change: Option<(u64, Vec<u64>)>,
}

impl Model {
    fn new(targets: usize, limit: u64) -> Model {
        let mut ledger = Ledger::default();
        ledger.begin(1);
        ledger.set(USER, Standing { limits: Limits { hard: blocks(limit), ..Limits::default() }, over_since_s: 0 });
        let mut shares = vec![Shares::default(); targets];
        shares.iter_mut().for_each(|shares| shares.set_on(true));
        Model {
            ledger,
            shares,
            used: vec![0; targets],
            runs: vec![0; targets],
            sent: Vec::new(),
            rounds: Vec::new(),
            most: limit,
            change: None,
        }
    }

    /// Sets another limit, 0: none.
    fn limit_to(&mut self, limit: u64) {
        let limits = Limits { hard: blocks(limit), ..Limits::default() };
        self.ledger.set(USER, Standing { limits, over_since_s: 0 });
        match limit {
            0 => (self.most, self.change) = (u64::MAX, None),
            // More than before: nothing is used beyond it.
            limit if self.most <= limit => (self.most, self.change) = (limit, None),
            limit => self.change = Some((limit, self.used.clone())),
        }
        self.tell_change();
    }

    /// Called after each step.
    fn note_use(&mut self) {
        let Some((limit, used)) = &mut self.change else { return };
        used.iter_mut().zip(&self.used).for_each(|(most, used)| *most = (*most).max(*used));
        if !self.sent.iter().any(|sent| matches!(sent, Sent::Changed { .. })) {
            self.most = (*limit).max(used.iter().sum());
            self.change = None;
        }
    }

    /// A target is started again. Messages on their way to it are lost, and so are the answers to what it has asked.
    fn restart(&mut self, target: usize) {
        self.shares[target] = Shares::default();
        self.shares[target].set_on(true);
        self.runs[target] += 1;
        self.sent.retain(|sent| match sent {
            Sent::Collect { to, .. } | Sent::Changed { to, .. } => *to != target,
            Sent::Told { .. } | Sent::Ask { .. } | Sent::Collected { .. } => true,
        });
    }

    fn tell_change(&mut self) {
        let number = self.ledger.changed();
        self.sent.extend((0..self.shares.len()).map(|to| Sent::Changed { to, number }));
    }

    /// Whether a limit is being divided. The server changes none meanwhile.
    fn is_dealing(&self) -> bool {
        self.sent.iter().any(|sent| matches!(sent, Sent::Collect { .. } | Sent::Collected { .. }))
    }

    fn usage(&self, target: usize) -> impl Fn(Account) -> Amount {
        let used = self.used[target];
        move |_| blocks(used)
    }

    /// A write of `n` blocks that is not repeated. Returns whether it was refused.
    fn write(&mut self, target: usize, n: u64, now_ns: u64) -> bool {
        match self.shares[target].admit(OWNER, blocks(n), now_ns, self.usage(target)) {
            Admission::Yes => self.used[target] += n,
            Admission::Ask(account) if account == USER => {
                let used = self.shares[target].ask(USER, blocks(self.used[target]));
                self.sent.push(Sent::Ask { from: (target, self.runs[target]), used, wanted: blocks(n) });
            }
            Admission::Ask(account) => {
                let answer = Answer::Is { number: 1, share: Share::Unlimited, refused: false };
                self.sent.push(Sent::Told { to: (target, self.runs[target]), account, answer });
            }
            Admission::No(_) => return true,
        }
        false
    }

    fn deliver(&mut self, at: usize, now_ns: u64) {
        match self.sent.swap_remove(at) {
            Sent::Ask { from, used, wanted } => self.ask(from, used, wanted, None),
            Sent::Told { to: (to, run), account, answer: Answer::Is { number, share, refused } } => {
                if run != self.runs[to] {
                    return;
                }
                self.shares[to].told(account, number, share, refused, now_ns);
            }
            Sent::Told { .. } => unreachable!("a call is sent as such"),
            Sent::Changed { to, number } => self.shares[to].forget(Some(USER), number),
            Sent::Collect { to, number, round } => {
                let used = self.shares[to].give_back(USER, number, blocks(self.used[to]));
                self.sent.push(Sent::Collected { from: to, number, round, used });
            }
            Sent::Collected { from, number, round, used } => {
                self.ledger.collected(USER, TargetId(from as u16), number, used);
                self.rounds[round].left -= 1;
                if self.rounds[round].left == 0 {
                    let Round { from, used, wanted, .. } = self.rounds[round].clone();
                    self.ask(from, used, wanted, Some(round));
                }
            }
        }
    }

    fn ask(&mut self, from: Run, used: Amount, wanted: Amount, round: Option<usize>) {
        let targets = self.shares.len();
        let need =
            Need { used, wanted, collected: round.is_some(), ahead: wanted.blocks == 59, targets: targets as u64 };
        match self.ledger.ask(USER, TargetId(from.0 as u16), need, 0) {
            Answer::Collect { number } if targets > 1 => {
                let round = self.rounds.len();
                self.rounds.push(Round { left: targets - 1, from, used, wanted });
                let others = (0..targets).filter(|to| *to != from.0);
                self.sent.extend(others.map(|to| Sent::Collect { to, number, round }));
            }
            Answer::Collect { .. } => {
                let need = Need { collected: true, ..need };
                let answer = self.ledger.ask(USER, TargetId(from.0 as u16), need, 0);
                self.sent.push(Sent::Told { to: from, account: USER, answer });
            }
            answer => self.sent.push(Sent::Told { to: from, account: USER, answer }),
        }
    }

    fn settle(&mut self, now_ns: u64) {
        while !self.sent.is_empty() {
            self.deliver(0, now_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: in whatever order messages arrive, the account never exceeds its limit, and it can use up the whole limit
    /// on any target. Method: writes and removals on some targets, messages delivered in random order, restarts of the
    /// ledger and of targets; at the end everything that is left is written on one target, and then not one block more.
    #[test]
    fn limits_hold_and_are_used_up(
        targets in 1..5usize,
        first_limit in 1..400u64,
        steps in proptest::collection::vec((0..10u8, 0..5usize, 1..60u64, 0..64usize), 0..200),
        last in 0..5usize,
    ) {
        let mut limit = first_limit;
        let mut model = Model::new(targets, limit);
        let (mut now_ns, mut starts) = (0, 1);
        for (what, target, n, at) in steps {
            let target = target % targets;
            match what {
                0..=3 => drop(model.write(target, n, now_ns)),
                4 => model.used[target] = model.used[target].saturating_sub(n),
                5 => now_ns += 30_000_000,
                6 if at == 0 => {
                    starts += 1;
                    let standing = model.ledger.standing(USER).unwrap_or_default();
                    model.ledger = Ledger::default();
                    model.ledger.begin(starts);
                    model.ledger.set(USER, standing);
                    // Messages on their way from or to it are lost with its connections. It says again that limits may
                    // have changed.
                    model.sent.clear();
                    model.tell_change();
                }
                7 if at < 3 && !model.is_dealing() => {
                    limit = if at == 0 { 0 } else { 2 * n };
                    model.limit_to(limit);
                }
                7 if at == 3 => model.restart(target),
                _ if model.sent.is_empty() => {}
                _ => model.deliver(at % model.sent.len(), now_ns),
            }
            let used: u64 = model.used.iter().sum();
            prop_assert!(used <= model.most, "{used} of {limit}, {}", model.most);
            model.note_use();
        }
        model.settle(now_ns);
        model.note_use();
        // An account that used more than its new limit may fill the place of removed files again for a while.
        if model.most != limit {
            return Ok(());
        }
        let last = last % targets;
        for n in (0..limit).map(|_| 1) {
            if model.used.iter().sum::<u64>() == limit {
                break;
            }
            // Once for each account, once for the share, and once more.
            for _ in 0..4 {
                let before = model.used[last];
                now_ns += 30_000_000;
                model.write(last, n, now_ns);
                model.settle(now_ns);
                if model.used[last] > before {
                    break;
                }
            }
        }
        prop_assert_eq!(model.used.iter().sum::<u64>(), limit);
        now_ns += 30_000_000;
        // A target that has written nothing yet asks for each account first, as above.
        for tried in 0..5 {
            let refused = model.write(last, 1, now_ns);
            model.settle(now_ns);
            prop_assert!(refused || tried < 4, "it is refused in the end");
        }
        prop_assert_eq!(model.used.iter().sum::<u64>(), limit);
    }
}

/// Goal: an answer of before a change of limits does not undo the change, and one of after it stays, whichever message
/// arrives first. Method: an account without a limit gets one while a target asks; all orders of the messages.
#[test]
fn an_answer_of_before_a_change_is_ignored() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut ledger = Ledger::default();
        ledger.begin(1);
        let need = |collected| Need { used: blocks(0), wanted: blocks(5), collected, ahead: false, targets: 1 };
        let before = ledger.ask(USER, TargetId(0), need(false), 0);
        let limits = Limits { hard: blocks(10), ..Limits::default() };
        ledger.set(USER, Standing { limits, over_since_s: 0 });
        let changed = ledger.changed();
        let after = ledger.ask(USER, TargetId(0), need(true), 0);
        let (mut shares, mut seen) = (Shares::default(), Vec::new());
        shares.set_on(true);
        shares.ask(USER, blocks(0));
        for message in order {
            let answer = match message {
                0 => before,
                1 => after,
                _ => {
                    shares.forget(Some(USER), changed);
                    seen.push(2);
                    continue;
                }
            };
            let Answer::Is { number, share, refused } = answer else { unreachable!("it has collected") };
            shares.told(USER, number, share, refused, 0);
            seen.push(message);
            let owner = Owner { gid: 0, ..OWNER };
            shares.told(Account { kind: AccountKind::Group, id: 0 }, 1, Share::Unlimited, false, 0);
            let fits = |n| shares.admit(owner, blocks(n), 0, |_| blocks(0)) == Admission::Yes;
            assert_eq!(fits(5), seen.contains(&1) || seen == [0], "{order:?} {seen:?}");
            assert_eq!(fits(11), seen == [0], "{order:?} {seen:?}");
        }
        assert_eq!(shares.admit(OWNER, blocks(11), 0, |_| blocks(0)), Admission::Ask(USER), "{order:?}");
    }
}

/// Goal: a target that ignores an outdated call says what it may still use, not what it uses. Method: two calls that
/// overtake each other, and a removal between them.
#[test]
fn an_outdated_call_takes_nothing() {
    let mut shares = Shares::default();
    shares.set_on(true);
    assert_eq!(shares.give_back(USER, 2, blocks(52)), blocks(52));
    assert_eq!(shares.give_back(USER, 1, blocks(45)), blocks(52), "it may use 52 blocks");
    assert_eq!(shares.give_back(USER, 3, blocks(45)), blocks(45));
}

/// Goal: a soft limit acts as a hard one when its grace time is over, until the use falls below the limit. Method: a
/// sequence of steps.
#[test]
fn soft_limits_count_after_their_grace() {
    let mut ledger = Ledger::default();
    let limits = Limits { hard: blocks(100), soft: blocks(50), grace_s: 10 };
    ledger.set(USER, Standing { limits, over_since_s: 0 });
    let need = |wanted| Need { used: blocks(60), wanted: blocks(wanted), collected: true, ahead: false, targets: 1 };
    let refused = |ledger: &mut Ledger, wanted, now_s| match ledger.ask(USER, TargetId(0), need(wanted), now_s) {
        Answer::Is { refused, .. } => refused,
        Answer::Collect { .. } => unreachable!("it has collected"),
    };
    assert_eq!(ledger.note(USER, blocks(50), 1000), None);
    let turn = ledger.note(USER, blocks(60), 1000).expect("it is over the soft limit");
    assert_eq!((turn.standing.over_since_s, turn.is_told), (1000, false));
    assert!(!refused(&mut ledger, 40, 1001) && refused(&mut ledger, 41, 1001));
    assert_eq!(ledger.note(USER, blocks(60), 1009), None);
    assert!(ledger.note(USER, blocks(60), 1010).is_some_and(|turn| turn.is_told), "the grace is over");
    assert!(refused(&mut ledger, 1, 1010));
    let turn = ledger.note(USER, blocks(50), 1020).expect("it is below again");
    assert_eq!((turn.standing.over_since_s, turn.is_told), (0, true));
    assert!(!refused(&mut ledger, 40, 1020));
    ledger.set(USER, Standing::default());
    assert!(!ledger.is_on() && ledger.standing(USER).is_none());
}

/// Goal: the limits of inodes and of blocks hold independently, and what requests under way may add is counted. Method:
/// a story on one target.
#[test]
fn inodes_and_blocks_are_limited_apart() {
    let (mut shares, used) = (Shares::default(), |_| Amount { blocks: 10, inodes: 2 });
    let one = Amount { blocks: 0, inodes: 1 };
    assert_eq!(shares.admit(OWNER, one, 0, used), Admission::Yes, "nothing is limited");
    shares.set_on(true);
    assert_eq!(shares.admit(OWNER, one, 0, used), Admission::Ask(USER));
    let group = Account { kind: AccountKind::Group, id: 8 };
    shares.told(group, 1, Share::Unlimited, false, 0);
    shares.told(USER, 1, Share::UpTo(Amount { blocks: 5, inodes: 3 }), false, 0);
    assert_eq!(shares.admit(OWNER, one, 0, used), Admission::Yes, "blocks beyond the limit stop no inode");
    assert_eq!(shares.admit(OWNER, blocks(1), 0, used), Admission::Ask(USER));
    shares.hold(OWNER, one);
    assert_eq!(shares.admit(OWNER, one, 0, used), Admission::Ask(USER));
    shares.told(USER, 2, Share::UpTo(Amount { blocks: 5, inodes: 3 }), true, 0);
    assert_eq!(shares.admit(OWNER, one, 1, used), Admission::No(USER));
    assert_eq!(shares.admit(OWNER, one, 30_000_000, used), Admission::Ask(USER), "it may have changed");
    assert_eq!(shares.give_back(USER, 3, Amount { blocks: 10, inodes: 2 }), Amount { blocks: 10, inodes: 3 });
    shares.release(OWNER, one);
    assert_eq!(shares.admit(OWNER, one, 0, used), Admission::Yes);
    let near = |shares: &Shares, margin| shares.nearness(OWNER, margin, used);
    assert_eq!((near(&shares, 1), near(&shares, 0).0), ((Nearness::Near, Some(USER)), Nearness::Far));
    shares.told(USER, 9, Share::UpTo(Amount { blocks: u64::MAX, inodes: 3 }), false, 0);
    assert_eq!(near(&shares, 1).0, Nearness::Unlimited, "inodes alone are limited");
    shares.forget(Some(group), 10);
    assert_eq!(near(&shares, 1), (Nearness::Near, Some(group)), "it may be limited");
}

/// Goal: counts follow changes of owners and sizes. Method: a sequence of steps.
#[test]
fn usage_is_counted_by_account() {
    let mut usage = Usage::default();
    let a = usage.number(OWNER);
    let b = usage.number(Owner { project: 9, ..OWNER });
    assert_eq!((a == b, usage.number(OWNER) == a, usage.owner(b).map(|o| o.project)), (false, true, Some(9)));
    usage.charge(a, 0, 5);
    usage.charge(b, 0, 7);
    usage.charge(a, 5, 3);
    usage.charge(OwnerIndex::NOBODY, 0, 9);
    let project = Account { kind: AccountKind::Project, id: 9 };
    assert_eq!((usage.used(USER), usage.used(project)), (10, 7));
    usage.charge(b, 7, 0);
    assert_eq!((usage.used(USER), usage.used(project), usage.all().count()), (3, 0, 2));
}
