//! Expressions read only steps that have ended by then, and questions name only calls that are known by then.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Found, is_broken};
use crate::expr::{Expression, Piece, StepField, Template};
use crate::fault::{Fault, nearest};
use crate::model::{Approve, Definition, OnError, Step, StepKind, ToolUse, Wait};

/// The steps that an expression can read. The value says whether the step may have been skipped or may have failed.
type Readable<'d> = BTreeMap<&'d str, bool>;

pub(super) fn check(definition: &Definition, broken: &BTreeSet<String>, found: &mut Found) {
    let mut ids = Vec::new();
    definition.walk(&mut |step| ids.push(step.id.as_str()));
    let mut check = Check { ids, broken, found };
    let start = Place { readable: Readable::new(), in_each: false, own: None, when: None };
    let main = check.list(&definition.steps, &start);
    if let Some(output) = &definition.output {
        check.template(output, &Place { readable: main.clone(), ..start.clone() });
    }
    // Each step has ended in some way when `finally` runs, so the author expects that data may be missing.
    let ended: Readable<'_> = main.keys().map(|id| (*id, false)).collect();
    check.list(&definition.finally, &Place { readable: ended, ..start });
    if let Some(key) = definition.concurrency.as_ref().and_then(|concurrency| concurrency.key.as_ref()) {
        key.each_expression(&mut |expression| {
            if expression.reads("steps")
                || expression.reads("item")
                || expression.reads("index")
                || expression.reads("run")
            {
                let fault = expression.spot.fault("the run has not started when its key is computed");
                check.found.fault(fault.hint("use `input`, `trigger` or `schedule`"));
            }
        });
    }
}

/// What is known at one place of a definition.
#[derive(Clone)]
struct Place<'d> {
    readable: Readable<'d>,
    in_each: bool,
    /// The step of the place.
    own: Option<&'d str>,
    /// The condition of the step, which may be about steps that it reads.
    when: Option<&'d Expression>,
}

struct Check<'d, 'f> {
    ids: Vec<&'d str>,
    broken: &'f BTreeSet<String>,
    found: &'f mut Found,
}

impl<'d> Check<'d, '_> {
    /// Checks a list of steps, and returns what can be read after it.
    fn list(&mut self, steps: &'d [Step], outer: &Place<'d>) -> Readable<'d> {
        let closures = closures(steps);
        let mut exports: Vec<Readable<'d>> = vec![Readable::new(); steps.len()];
        let mut places: Vec<Option<Place<'d>>> = vec![None; steps.len()];
        for index in order(&closures) {
            let step = &steps[index];
            let mut readable = outer.readable.clone();
            for need in &closures[index] {
                readable.extend(exports[*need].iter().map(|(id, maybe)| (*id, *maybe)));
            }
            let place = Place { readable, in_each: outer.in_each, own: Some(&step.id), when: step.when.as_ref() };
            exports[index] = self.step(step, &place);
            places[index] = Some(place);
        }
        for (index, step) in steps.iter().enumerate() {
            if let (StepKind::Approve(approve), Some(place)) = (&step.kind, &places[index]) {
                self.targets(step, approve, steps, (index, &closures), place);
            }
        }
        let mut all = outer.readable.clone();
        exports.into_iter().for_each(|export| all.extend(export));
        all
    }

    /// Checks a step, and returns what can be read after it.
    fn step(&mut self, step: &'d Step, place: &Place<'d>) -> Readable<'d> {
        let is_optional = step.when.is_some() || step.on_error == OnError::Continue;
        let mut export = Readable::from([(step.id.as_str(), is_optional)]);
        if let Some(when) = &step.when {
            self.expression(when, place);
        }
        match &step.kind {
            StepKind::Tool(tool) => self.tool(tool, place),
            StepKind::Agent(agent) => {
                for piece in &agent.instruction {
                    if let Piece::Expression(expression) = piece {
                        self.expression(expression, place);
                    }
                }
                self.template(&agent.params, place);
            }
            StepKind::Choose(branches) => {
                for branch in branches {
                    if let Some(when) = &branch.when {
                        self.expression(when, place);
                    }
                    let inner = self.list(&branch.steps, place);
                    export.extend(new(&inner, place).map(|(id, _)| (id, true)));
                }
            }
            StepKind::Parallel(branches) => {
                for (_, steps) in branches {
                    let inner = self.list(steps, place);
                    export.extend(new(&inner, place).map(|(id, maybe)| (id, maybe || is_optional)));
                }
            }
            StepKind::Each(each) => {
                self.template(&each.list, place);
                let inside = Place { in_each: true, ..place.clone() };
                let readable = self.list(&each.steps, &inside);
                if let Some(collect) = &each.collect {
                    self.expression(collect, &Place { readable, ..inside });
                }
            }
            StepKind::Wait(wait) => match wait {
                Wait::For(_) => {}
                Wait::Until(time) => self.template(time, place),
                Wait::Event { matches, .. } => matches.iter().for_each(|(_, value)| self.template(value, place)),
            },
            StepKind::Approve(approve) => self.template(&approve.text, place),
            StepKind::Workflow { input, .. } => self.template(input, place),
            StepKind::Emit { data, .. } => self.template(data, place),
            StepKind::Stop { message, output, .. } => {
                message.iter().chain(output).for_each(|template| self.template(template, place));
            }
        }
        if let Some(undo) = &step.undo {
            let mut after = place.clone();
            after.readable.insert(&step.id, false);
            self.tool(undo, &after);
        }
        export
    }

    fn tool(&mut self, tool: &'d ToolUse, place: &Place<'d>) {
        self.template(&tool.params, place);
        if let Some(resource) = &tool.resource {
            self.template(resource, place);
        }
    }

    fn template(&mut self, template: &'d Template, place: &Place<'d>) {
        let mut expressions = Vec::new();
        template.each_expression(&mut |expression| expressions.push(expression));
        expressions.into_iter().for_each(|expression| self.expression(expression, place));
    }

    fn expression(&mut self, expression: &'d Expression, place: &Place<'d>) {
        for name in ["item", "index"] {
            if expression.reads(name) && !place.in_each {
                self.found.fault(expression.spot.fault(format!("`{name}` exists only inside `each`")));
            }
        }
        for used in &expression.steps {
            match place.readable.get(used.id.as_str()) {
                Some(true) if used.field == StepField::Data && !is_guarded(expression, place, &used.id) => {
                    let message = format!("step `{}` may have no data, because it may be skipped or fail", used.id);
                    let hint = format!("ask first, as in `steps.{}.status == 'succeeded' ? … : …`", used.id);
                    self.found.warn(expression.spot.fault(message).hint(hint));
                }
                Some(_) => {}
                None => {
                    let fault = self.unreadable(expression, &used.id, place);
                    self.found.faults_unless(is_broken(self.broken, &used.id), fault);
                }
            }
        }
    }

    fn unreadable(&self, expression: &Expression, id: &str, place: &Place<'d>) -> Fault {
        if place.own == Some(id) {
            return expression.spot.fault(format!("step `{id}` cannot read itself"));
        }
        if !self.ids.contains(&id) {
            let fault = expression.spot.fault(format!("unknown step `{id}`"));
            let known = self.ids.iter().copied().filter(|_| !self.found.is_full());
            return match nearest(id, known) {
                Some(known) => fault.hint(format!("did you mean `{known}`?")),
                None => fault,
            };
        }
        let fault = expression.spot.fault(format!("step `{id}` need not have ended when this is evaluated"));
        fault.hint("name it in `needs`; steps inside `each` are readable only inside it, and `finally` only at the end")
    }

    /// Checks the steps that a question names: they come later, and their calls are known when the question is asked.
    fn targets(
        &mut self,
        step: &'d Step,
        approve: &'d Approve,
        list: &'d [Step],
        (own, closures): (usize, &[BTreeSet<usize>]),
        place: &Place<'d>,
    ) {
        for (at, id) in approve.targets.iter().enumerate() {
            let spot = step.spot.below(&format!("/approve/for/{at}"));
            let found = list.iter().enumerate().find_map(|(index, other)| Some((index, outside_each(other, id)?)));
            let Some((index, target)) = found else {
                if !is_broken(self.broken, id) {
                    let fault = if self.ids.contains(&id.as_str()) {
                        spot.fault(format!("step `{id}` is not after this step in the same list"))
                    } else {
                        spot.fault(format!("unknown step `{id}`"))
                    };
                    self.found.fault(fault.hint("name tool steps that come later, outside of `each`"));
                }
                continue;
            };
            if !closures[index].contains(&own) {
                let fault = spot.fault(format!("step `{id}` does not wait for this step"));
                self.found.fault(fault.hint(format!("name `{}` in its `needs`", step.id)));
                continue;
            }
            let StepKind::Tool(tool) = &target.kind else {
                self.found.fault(spot.fault(format!("step `{id}` is not a tool step")));
                continue;
            };
            let mut late = BTreeSet::new();
            for template in [Some(&tool.params), tool.resource.as_ref()].into_iter().flatten() {
                template.each_expression(&mut |expression| {
                    let later = expression.steps.iter().filter(|used| !place.readable.contains_key(used.id.as_str()));
                    late.extend(later.map(|used| used.id.as_str()));
                });
            }
            for read in late {
                let message =
                    format!("step `{id}` reads `{read}`, which need not have ended when the question is asked");
                self.found.fault(spot.fault(message));
            }
        }
    }
}

impl Found {
    fn faults_unless(&mut self, is_known: bool, fault: Fault) {
        if !is_known {
            self.fault(fault);
        }
    }
}

/// The steps of `inner` that are not readable at `place`.
fn new<'d>(inner: &Readable<'d>, place: &Place<'d>) -> impl Iterator<Item = (&'d str, bool)> {
    let news: Vec<(&str, bool)> =
        inner.iter().filter(|(id, _)| !place.readable.contains_key(**id)).map(|(id, maybe)| (*id, *maybe)).collect();
    news.into_iter()
}

/// Returns whether an expression, or the condition of its step, asks whether the step has data.
fn is_guarded(expression: &Expression, place: &Place<'_>, id: &str) -> bool {
    let asks = |expression: &Expression| {
        let other = expression.steps.iter().any(|used| used.id == id && used.field == StepField::Other);
        other || expression.source().contains("has(") || expression.source().contains("null")
    };
    asks(expression) || place.when.is_some_and(|when| when.steps.iter().any(|used| used.id == id) && asks(when))
}

/// Finds a step in a step, but not inside `each`.
fn outside_each<'d>(step: &'d Step, id: &str) -> Option<&'d Step> {
    if step.id == id {
        return Some(step);
    }
    if matches!(step.kind, StepKind::Each(_)) {
        return None;
    }
    step.inner().into_iter().flatten().find_map(|inner| outside_each(inner, id))
}

/// Returns for each step of a list all steps of the list that have ended before it.
fn closures(steps: &[Step]) -> Vec<BTreeSet<usize>> {
    let index: HashMap<&str, usize> = steps.iter().enumerate().map(|(at, step)| (step.id.as_str(), at)).collect();
    let needs: Vec<Vec<usize>> =
        steps.iter().map(|step| step.needs.iter().filter_map(|id| index.get(id.as_str()).copied()).collect()).collect();
    let before = |start: usize| {
        // In a circle, a step would have ended before itself.
        let mut seen = vec![false; steps.len()];
        seen[start] = true;
        let (mut all, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(step) = open.pop() {
            for next in &needs[step] {
                if !std::mem::replace(&mut seen[*next], true) {
                    all.insert(*next);
                    open.push(*next);
                }
            }
        }
        all
    };
    (0..steps.len()).map(before).collect()
}

/// Returns the steps in an order in which each comes after those that it needs. The larger closure is always later.
fn order(closures: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..closures.len()).collect();
    order.sort_by_key(|index| (closures[*index].len(), *index));
    order
}
