//! Ids are unique, and needs are steps of the same list without a circle.

use std::collections::{BTreeSet, HashMap};

use super::{Found, is_broken};
use crate::fault::nearest;
use crate::model::{Definition, Step, StepKind};

pub(super) fn check(definition: &Definition, broken: &BTreeSet<String>, found: &mut Found) {
    let mut ids: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    definition.walk(&mut |step| {
        ids.push(&step.id);
        if !seen.insert(step.id.as_str()) {
            let fault = step.spot.below("/id").fault(format!("the id `{}` is used twice", step.id));
            found.fault(fault.hint("ids are unique in the whole document"));
        }
        if let StepKind::Workflow { workflow, .. } = &step.kind
            && *workflow == definition.workflow
        {
            found.fault(step.spot.below("/workflow").fault("the workflow calls itself"));
        }
    });
    for step in &definition.finally {
        step.walk(&mut |step| {
            if matches!(step.kind, StepKind::Stop { .. }) {
                found.fault(step.spot.below("/stop").fault("`stop` has no meaning in `finally`: the run ends already"));
            }
        });
    }
    for list in [&definition.steps, &definition.finally] {
        check_list(list, &ids, broken, found);
    }
}

fn check_list(steps: &[Step], ids: &[&str], broken: &BTreeSet<String>, found: &mut Found) {
    let here: HashMap<&str, &Step> = steps.iter().map(|step| (step.id.as_str(), step)).collect();
    for step in steps {
        for (index, need) in step.needs.iter().enumerate() {
            if here.contains_key(need.as_str()) || is_broken(broken, need) {
                continue;
            }
            let spot = step.spot.below(&format!("/needs/{index}"));
            let fault = if ids.contains(&need.as_str()) {
                spot.fault(format!("step `{need}` is in another list")).hint("`needs` names steps of the same list")
            } else {
                let fault = spot.fault(format!("unknown step `{need}`"));
                match nearest(need, here.keys().copied().filter(|_| !found.is_full())) {
                    Some(known) => fault.hint(format!("did you mean `{known}`?")),
                    None => fault,
                }
            };
            found.fault(fault);
        }
        step.inner().into_iter().for_each(|list| check_list(list, ids, broken, found));
    }
    if let Some(circle) = circle(steps, &here) {
        let first = here.get(circle[0]).map(|step| step.spot.below("/needs")).unwrap_or_default();
        found.fault(first.fault(format!("steps need each other in a circle: {}", circle.join(" -> "))));
    }
}

/// Returns the ids of a circle, the first one again at the end.
fn circle<'s>(steps: &'s [Step], here: &HashMap<&'s str, &'s Step>) -> Option<Vec<&'s str>> {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in steps {
        // Each entry is a step on the path with the number of its needs that were followed.
        let mut path: Vec<(&Step, usize)> = vec![(start, 0)];
        while let Some((step, followed)) = path.last_mut() {
            let next = step.needs.get(*followed);
            *followed += 1;
            let Some(next) = next else {
                done.insert(&step.id);
                path.pop();
                continue;
            };
            let Some(next) = here.get(next.as_str()).filter(|next| !done.contains(next.id.as_str())) else { continue };
            if let Some(at) = path.iter().position(|(step, _)| std::ptr::eq::<Step>(*step, *next)) {
                let mut circle: Vec<&str> = path[at..].iter().map(|(step, _)| step.id.as_str()).collect();
                circle.push(&next.id);
                return Some(circle);
            }
            path.push((next, 0));
        }
    }
    None
}
