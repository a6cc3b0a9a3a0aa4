//! Property tests: `plan()` never permits what the policy does not permit.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::{option, sample};
use ringfence_core::plan::{Demand, demands};
use ringfence_core::policy::{HostRule, Network, PathGlob, Size, Span, Workspace};
use ringfence_core::{
    Backend, Capabilities, Clause, Plan, Policy, Refusal, Support, UnstatedClauses, WorkspaceFacts,
    plan,
};

fn clauses() -> impl Strategy<Value = BTreeSet<Clause>> {
    sample::subsequence(Clause::ALL.to_vec(), 0..=4)
        .prop_map(|clauses| clauses.into_iter().collect())
}

fn texts(from: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<&'static str>>> {
    option::of(sample::subsequence(from, 0..=from.len()))
}

fn network() -> impl Strategy<Value = Option<Network>> {
    let hosts = sample::subsequence(vec!["example.org", "*.example.net:443", "10.0.0.0/8"], 0..=3);
    let allow = hosts.prop_map(|hosts| {
        Network::only(hosts.iter().map(|host| host.parse().expect("the host is well-formed")))
    });
    option::of(prop_oneof![Just(Network::Closed), Just(Network::Open), allow])
}

fn globs(texts: Option<Vec<&str>>) -> Option<Vec<PathGlob>> {
    texts.map(|texts| {
        texts.iter().map(|text| text.parse().expect("the pattern is well-formed")).collect()
    })
}

prop_compose! {
    fn policy()(
        files in (
            texts(&["/a", "/b"]),
            texts(&["/c", "/d"]),
            texts(&["**/.env", "x"]),
            texts(&["Makefile", ".git"]),
        ),
        network in network(),
        sizes in [(); 4].map(|()| option::of(0u64..1 << 40)),
        time in option::of(1u32..1000),
        cpus in option::of(0.01f64..64.0),
        processes in option::of(1u32..1000),
        pass in texts(&["LANG", "TERM"]),
        require in clauses(),
        allow_weaker in clauses(),
    ) -> Policy {
        let paths = |texts: Option<Vec<&str>>| {
            texts.map(|texts| texts.iter().map(Into::into).collect())
        };
        let [memory, output, tmp, disk] = sizes.map(|size| size.map(Size::from_bytes));
        let mut policy = Policy { network, require, allow_weaker, ..Policy::default() };
        (policy.filesystem.read, policy.filesystem.write) = (paths(files.0), paths(files.1));
        (policy.filesystem.hide, policy.filesystem.protect) = (globs(files.2), globs(files.3));
        (policy.limits.memory, policy.limits.output) = (memory, output);
        (policy.limits.tmp, policy.limits.disk) = (tmp, disk);
        policy.limits.time = time.map(Span::seconds);
        (policy.limits.cpus, policy.limits.processes) = (cpus, processes);
        policy.env.pass = pass.map(|names| names.iter().map(ToString::to_string).collect());
        policy
    }
}

fn support() -> impl Strategy<Value = Support> {
    prop_oneof![
        8 => Just(Support::enforced("test")),
        1 => Just(Support::weaker("in part")),
        1 => Just(Support::absent("no means", "get some")),
    ]
}

prop_compose! {
    fn capabilities()(
        backend in sample::select(Backend::ALL.to_vec()),
        defaults in prop_oneof![Just(UnstatedClauses::Required), Just(UnstatedClauses::Waived)],
        known in btree_map(sample::select(Clause::ALL.to_vec()), support(), 0..30),
        is_able in any::<bool>(),
    ) -> Capabilities {
        let rest = |clause| (clause, Support::enforced("test"));
        let mut support: BTreeMap<_, _> =
            if is_able { Clause::ALL.map(rest).into() } else { BTreeMap::new() };
        support.extend(known);
        Capabilities { backend, summary: "test".to_owned(), defaults, support }
    }
}

/// Returns a rank of what a network permits, from nothing to everything.
fn openness(network: &Network) -> (u8, usize) {
    match network {
        Network::Closed => (0, 0),
        Network::Allow(egress) => (1, egress.allow.len()),
        Network::Open => (2, 0),
    }
}

fn never_wider(policy: &Policy, plan: &Plan) {
    let planned = &plan.policy;
    let network = planned.network.as_ref().expect("a plan's policy is full");
    assert!(openness(network) <= openness(policy.network.as_ref().unwrap_or(&Network::Closed)));
    assert_eq!(network.rules(), policy.network.as_ref().map(Network::rules).unwrap_or_default());

    let (files, planned_files) = (&policy.filesystem, &planned.filesystem);
    assert_eq!(planned_files.read, Some(files.read.clone().unwrap_or_default()));
    assert_eq!(planned_files.write, Some(files.write.clone().unwrap_or_default()));
    assert_eq!(planned_files.hide, Some(files.hide.clone().unwrap_or_default()));
    let built_in = || Policy::DEFAULT_PROTECTED.map(PathGlob::literal).to_vec();
    assert_eq!(planned_files.protect, Some(files.protect.clone().unwrap_or_else(built_in)));
    assert_eq!(planned.env.pass, Some(policy.env.pass.clone().unwrap_or_default()));
    assert_eq!(planned.env.set, policy.env.set);

    let (limits, planned_limits) = (&policy.limits, &planned.limits);
    assert_eq!(planned_limits.time, limits.time);
    assert_eq!(planned_limits.memory, limits.memory);
    assert_eq!(planned_limits.cpus, limits.cpus);
    assert_eq!(planned_limits.processes, limits.processes);
    assert_eq!(planned_limits.disk, limits.disk);
    assert_eq!(planned_limits.output, limits.output.or(Some(Policy::DEFAULT_OUTPUT)));
    assert_eq!(planned_limits.tmp, limits.tmp.or(Some(Policy::DEFAULT_TMP)));
    assert_eq!((&planned.require, &planned.allow_weaker), (&policy.require, &policy.allow_weaker));
}

proptest! {
    #[test]
    fn a_plan_holds_every_clause_that_is_not_given_up_by_name(
        policy in policy(),
        capabilities in capabilities(),
        protected_paths_exist in any::<bool>(),
    ) {
        let facts = WorkspaceFacts { protected_paths_exist };
        let demanded = demands(&policy, facts);
        let is_waived = capabilities.defaults == UnstatedClauses::Waived;
        let may_lack = |clause: Clause, demand: Demand| {
            demand != Demand::Required
                && (policy.allow_weaker.contains(&clause)
                    || (demand == Demand::Default && is_waived))
        };
        let is_missing = |clause: Clause, demand: Demand| {
            !capabilities.support(clause).is_enforced() && !may_lack(clause, demand)
        };
        let missing: Vec<Clause> = demanded
            .iter()
            .filter(|(clause, demand)| is_missing(**clause, **demand))
            .map(|(clause, _)| *clause)
            .collect();
        match plan(&policy, facts, &capabilities) {
            Ok(plan) => {
                prop_assert_eq!(&missing, &Vec::new());
                prop_assert_eq!(plan.backend, capabilities.backend);
                prop_assert_eq!(plan.policy_sha256.clone(), policy.sha256());
                prop_assert!(demanded.keys().eq(plan.held.keys()));
                for (clause, held) in &plan.held {
                    prop_assert_eq!(held, &capabilities.support(*clause));
                }
                never_wider(&policy, &plan);
            }
            Err(Refusal { backend, unmet, .. }) => {
                prop_assert_eq!(backend, capabilities.backend);
                prop_assert!(!unmet.is_empty());
                let unmet: Vec<Clause> = unmet.iter().map(|unmet| unmet.clause).collect();
                prop_assert_eq!(unmet, missing);
            }
        }
    }

    #[test]
    fn less_support_never_turns_a_refusal_into_a_plan(
        policy in policy(),
        capabilities in capabilities(),
        lost in clauses(),
    ) {
        let facts = WorkspaceFacts { protected_paths_exist: true };
        let mut weaker = capabilities.clone();
        weaker.support.retain(|clause, _| !lost.contains(clause));
        if plan(&policy, facts, &capabilities).is_err() {
            prop_assert!(plan(&policy, facts, &weaker).is_err());
        }
    }

    #[test]
    fn a_policy_survives_json_and_toml(policy in policy()) {
        let json = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(&Policy::from_json(&json).unwrap(), &policy);
        let toml = toml::to_string(&policy).unwrap();
        prop_assert_eq!(&Policy::from_toml(&toml).unwrap(), &policy);
    }

    #[test]
    fn no_text_makes_a_parser_panic(
        text in prop_oneof![".{0,60}", "[-0-9a-zKMGT.:/*@\\[\\]\\\\\"{}=\n ]{0,40}"],
    ) {
        let _ = Policy::from_toml(&text); // the answer does not matter
        let _ = Policy::from_json(&text); // the answer does not matter
        if let Ok(size) = text.parse::<Size>() {
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
        if let Ok(span) = text.parse::<Span>() {
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }
        if let Ok(rule) = text.parse::<HostRule>() {
            prop_assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        if let Ok(glob) = text.parse::<PathGlob>() {
            prop_assert_eq!(glob.to_string().parse(), Ok(glob));
        }
        if let Ok(workspace) = text.parse::<Workspace>() {
            prop_assert_eq!(workspace.to_string().parse(), Ok(workspace));
        }
    }
}
