//! Hostile definitions are refused within 100 ms and 64 MiB each. This file has one test, because it measures the memory of
//! its process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use monstrum_flow::check;

const TIME_MAX: Duration = Duration::from_millis(100);
const MEMORY_KIB_MAX: u64 = 64 * 1024;

fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The time that the processor has worked for this thread, which does not depend on the load of the machine.
fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split_whitespace().next().unwrap().parse().unwrap())
}

/// A definition with one step.
fn step(rest: &str) -> String {
    format!("workflow: w\nbot: b\nsteps:\n- {{ id: a, tool: t, {rest} }}\n")
}

fn steps(count: usize, make: impl Fn(usize) -> String) -> String {
    format!("workflow: w\nbot: b\nsteps:\n{}", (0..count).map(make).collect::<String>())
}

fn when(expression: &str) -> String {
    step(&format!("when: {}", serde_json::to_string(expression).unwrap()))
}

/// Texts that attack the reader.
fn documents() -> Vec<(&'static str, String)> {
    let laughs: String =
        (1..20).map(|at| format!("l{at}: &l{at} [{}]\n", vec![format!("*l{}", at - 1); 9].join(","))).collect();
    let keys: String = (0..60_000).map(|at| format!("k{at}: 1\n")).collect();
    let indents: String = (0..500).map(|at| format!("{}a:\n", " ".repeat(at))).collect();
    vec![
        ("billion laughs", format!("l0: &l0 [lol]\n{laughs}")),
        ("alias of itself", "a: &a [*a]\n".to_owned()),
        ("merge keys", "a: &a { b: 1 }\nc: { <<: *a }\n".to_owned()),
        ("deep lists", "[".repeat(200_000)),
        ("deep lists that end", format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))),
        ("deep maps", "{a: ".repeat(60_000)),
        ("deep blocks", "- ".repeat(120_000)),
        ("deep indents", indents),
        ("deep JSON", "{\"a\":".repeat(50_000)),
        (
            "a huge key above many expressions",
            format!("output: {{ \"{}\": [{}] }}\n", "~".repeat(210_000), "'${{1}}',".repeat(5_400)),
        ),
        ("a huge key", format!("{}: 1\n", "k".repeat(250_000))),
        ("a huge quoted key", format!("\"{}\": 1\n", "k".repeat(250_000))),
        ("a huge explicit key", format!("? {}\n: 1\n", "k".repeat(250_000))),
        ("a huge value", format!("workflow: {}\n", "v".repeat(250_000))),
        ("many keys", keys),
        ("many small values", format!("[{}]", "1,".repeat(130_000))),
        ("many empty maps", format!("[{}]", "{},".repeat(80_000))),
        ("many quotes", "'".repeat(250_000)),
        ("many escapes", format!("a: \"{}\"\n", "\\u0041".repeat(40_000))),
        ("many breaks", format!("a: \"{}\"\n", "\n".repeat(250_000))),
        ("many comments", "# c\n".repeat(60_000)),
        ("many documents", "--- a\n".repeat(40_000)),
        ("many directives", "%TAG ! tag:x,2000:\n".repeat(10_000)),
        ("many tags", format!("a: {}b\n", "!x ".repeat(50_000))),
        ("many anchors", (0..20_000).map(|at| format!("- &a{at} 1\n")).collect()),
        ("question marks", "? ".repeat(100_000)),
        ("colons", ": ".repeat(100_000)),
        ("pipes", "a: |\n".repeat(50_000)),
        ("controls", "\u{1b}[2J\u{0}\u{202e}".repeat(20_000)),
        ("tabs", "\t".repeat(250_000)),
        ("not UTF-8 enough", "\u{feff}\u{fffd}\u{2028}".repeat(25_000)),
        ("more than the limit", "a".repeat(10_000_000)),
    ]
}

/// Documents that attack what is made of them.
fn definitions() -> Vec<(&'static str, String)> {
    let blocks = |count: usize| {
        let open: String = (0..count).map(|at| format!("[{{id: b{at}, each: [1], steps: ")).collect();
        format!("workflow: w\nbot: b\nsteps: {open}1{}", "}]".repeat(count))
    };
    let defs: String = (0..60)
        .map(|at| format!("a{at}: {{ allOf: [{{ $ref: '#/$defs/a{n}' }}, {{ $ref: '#/$defs/a{n}' }}] }}, ", n = at + 1))
        .collect();
    let needs = (0..200).map(|at| format!("s{at}")).collect::<Vec<_>>().join(", ");
    vec![
        ("deep blocks of steps", blocks(14)),
        ("too many steps", steps(5_000, |at| format!("- {{ id: s{at}, tool: t }}\n"))),
        ("one id", steps(200, |_| "- { id: a, tool: t }\n".to_owned())),
        ("a circle of all", steps(200, |at| format!("- {{ id: s{at}, tool: t, needs: [s{}] }}\n", (at + 1) % 200))),
        ("circles everywhere", steps(90, |at| format!("- {{ id: s{at}, tool: t, needs: [{needs}] }}\n"))),
        (
            "many unknown needs",
            steps(200, |at| format!("- {{ id: s{at}, tool: t, needs: [{}] }}\n", "zz, ".repeat(80))),
        ),
        ("many unknown keys", step(&(0..9_000).map(|at| format!("kk{at}: 1, ")).collect::<String>())),
        (
            "a schema that doubles",
            format!(
                "workflow: w\nbot: b\ninput: {{ $ref: '#/$defs/a0', $defs: {{ {defs} a60: {{}} }} }}\nsteps: [1]\n"
            ),
        ),
        ("a recursive schema", {
            let inner = "{ items: { $ref: '#/$defs/a' } }";
            format!(
                "workflow: w\nbot: b\ninput: {{ $ref: '#/$defs/a', $defs: {{ a: {{ anyOf: [{inner}, {inner}] }} }} }}\nsteps: [1]\n"
            )
        }),
        ("a schema of patterns", "workflow: w\nbot: b\ninput: { pattern: '(a{1000}){1000}' }\nsteps: [1]\n".to_owned()),
        ("a schema of many patterns", {
            let all: String = (0..3_000).map(|at| format!("p{at}: {{ pattern: '[a-z]{{50}}{at}' }}, ")).collect();
            format!("workflow: w\nbot: b\ninput: {{ properties: {{ {all} }} }}\nsteps: [1]\n")
        }),
        ("a schema of a long chain", {
            let chain: String = (0..6_000).map(|at| format!("a{at}: {{ $ref: '#/$defs/a{}' }}, ", at + 1)).collect();
            format!(
                "workflow: w\nbot: b\ninput: {{ $ref: '#/$defs/a0', $defs: {{ {chain} a6000: {{}} }} }}\nsteps: [1]\n"
            )
        }),
        ("a schema far away", "workflow: w\nbot: b\ninput: { $ref: 'http://127.0.0.1:1/x' }\nsteps: [1]\n".to_owned()),
        ("brackets", when(&"(".repeat(1_000))),
        ("brackets that end", when(&format!("{}1{}", "(".repeat(500), ")".repeat(500)))),
        ("lists of lists", when(&format!("{}{}", "[".repeat(500), "]".repeat(500)))),
        ("choices of choices", when(&format!("{}1", "true?1:".repeat(140)))),
        ("negations", when(&format!("{}1", "!-".repeat(500)))),
        ("negations of brackets", when(&format!("{}1{}", "-(".repeat(300), ")".repeat(300)))),
        ("a long sum", when(&["1"; 500].join("+"))),
        ("a long chain", when(&format!("input{}", ".a".repeat(500)))),
        ("loops of loops", when(&format!("{}1{}", "[1].map(x,".repeat(90), ")".repeat(90)))),
        ("a huge expression", when(&"1+".repeat(100_000))),
        (
            "too many expressions",
            steps(190, |at| format!("- {{ id: s{at}, tool: t, when: '{}' }}\n", ["[1].all(x,x==1)"; 30].join("&&"))),
        ),
        ("wrong expressions", step(&format!("params: {{ v: '{}' }}", "${{ ( }}".repeat(25_000)))),
        ("marks without an end", step(&format!("params: {{ v: '{}' }}", "${{".repeat(80_000)))),
        ("marks in marks", step(&format!("params: {{ v: '{}' }}", "$${{${{".repeat(30_000)))),
        ("a bomb of a pattern", when("input.matches('((a+)+)+$') && inputs")),
        ("an unknown function", when("input.eval('1')")),
        ("a long path to many expressions", {
            let open: String = (0..55).map(|_| format!("{{ \"{}\": ", "~".repeat(256))).collect();
            step(&format!("nope: 1, params: {open}[{}]{}", "'${{1}}',".repeat(5_400), "}".repeat(55)))
        }),
        ("a huge id", format!("workflow: w\nbot: b\nsteps: [{{ id: {}, tool: t }}]\n", "a".repeat(200_000))),
        ("a list for everything", format!("workflow: [1]\nbot: [1]\nsteps: [{}]\n", "[1],".repeat(10_000))),
    ]
}

#[test]
fn hostile_definitions_are_refused_in_time_and_memory() {
    let all: Vec<_> = documents().into_iter().chain(definitions()).collect();
    assert!(all.len() >= 40);
    // The first use of a parser fills its tables.
    check("workflow: w\nbot: b\nsteps: [{ id: a, tool: t, when: '1 == 1' }]\n", None).unwrap();
    for (name, text) in all {
        // Resets the peak of the resident memory.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = memory_kib("VmRSS:");
        let started = processor_time();
        let faults = check(&text, None).expect_err(name);
        let time = processor_time() - started;
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.message.len() < 4_000), "{name}");
        let memory = memory_kib("VmHWM:").saturating_sub(before);
        println!("{name}: {time:?}, {memory} KiB");
        assert!(memory <= MEMORY_KIB_MAX, "{name} took {memory} KiB");
        assert!(time <= TIME_MAX, "{name} took {time:?}");
    }
}
