//! Guests that no compiler would produce, assembled from text and installed as plugins.
//!
//! Each guest attacks in calls with non-empty parameters, and returns `{}` in all other calls.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use support::Server;

const TYPES: &str = include_str!("../../host/crates/runtime/src/tests/wat/types.wat");
pub(crate) const ALLOCATOR: &str = include_str!("../../host/crates/runtime/src/tests/wat/allocator.wat");
const GUEST: &str = include_str!("../../host/crates/runtime/src/tests/wat/guest.wat");

/// A plugin whose component is written by hand.
#[derive(Clone, Copy)]
pub(crate) struct Guest {
    pub(crate) name: &'static str,
    /// The code that runs when the guest attacks.
    attack: &'static str,
    /// Further definitions of the guest's core module.
    more: &'static str,
    /// The code that runs first in the allocator.
    allocating: &'static str,
    /// The options of `execute` that run code after the host has read the response.
    after: &'static str,
}

const HARMLESS: Guest = Guest { name: "", attack: "", more: "", allocating: "", after: "" };

/// All handwritten guests.
pub(crate) const GUESTS: &[Guest] = &[
    Guest {
        name: "wall-start",
        // The trial instantiation at load time has no credential, but a call to a resource with a credential has that
        // credential. The start function loops only in such calls.
        more: r#"(func $start
            (call $status (i32.const 128))
            (if (i32.eq (i32.load (i32.const 132)) (i32.const 5)) (then (loop (br 0)))))
        (start $start)"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-allocator",
        allocating: "(if (i32.gt_u (local.get $size) (i32.const 5000)) (then (loop (br 0))))",
        ..HARMLESS
    },
    Guest {
        name: "wall-after",
        attack: "(global.set $attacking (i32.const 1))",
        more: r#"(global $attacking (mut i32) (i32.const 0))
        (func (export "after") (param i32) (if (global.get $attacking) (then (loop (br 0)))))"#,
        after: r#"(post-return (core func $plugin "after"))"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-memories",
        more: "(memory $one 1) (memory $two 1)",
        attack: r#"(loop $more (br_if $more (i32.or
            (i32.ne (memory.grow $one (i32.const 16)) (i32.const -1))
            (i32.ne (memory.grow $two (i32.const 16)) (i32.const -1)))))
        (memory.fill $one (i32.const 0) (i32.const 1) (i32.mul (memory.size $one) (i32.const 65536)))
        (memory.fill $two (i32.const 0) (i32.const 1) (i32.mul (memory.size $two) (i32.const 65536)))
        unreachable"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-table",
        more: "(table $table 0 funcref)",
        attack: r#"(loop $more
            (br_if $more (i32.ne (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1))))
        unreachable"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-recursion",
        more: "(func $deeper (call $deeper) (call $deeper))",
        attack: "(call $deeper)",
        ..HARMLESS
    },
    Guest {
        name: "wall-result-bytes",
        attack: r#"(i32.store (i32.const 80) (i32.const 0x22ff22))
        (return (call $answer (i32.const 0) (i32.const 80) (i32.const 3)))"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-call-bytes",
        attack: r#"(i32.store (i32.const 80) (i32.const 0xff))
        (call $log (i32.const 1) (i32.const 80) (i32.const 1) (i32.const 0) (i32.const 0))"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-list",
        // 100 000 headers, each with a name of 64 KiB at the same address.
        attack: r#"(drop (memory.grow (i32.const 40)))
        (loop $again
            (i32.store (i32.add (i32.const 200000) (i32.mul (local.get $n) (i32.const 16))) (i32.const 0))
            (i32.store (i32.add (i32.const 200004) (i32.mul (local.get $n) (i32.const 16))) (i32.const 65536))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $n) (i32.const 100000))))
        (call $send (i32.const 64) (i32.const 3) (i32.const 67) (i32.const 1) (i32.const 0) (i32.const 0)
            (i32.const 200000) (i32.const 100000) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
            (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 128))"#,
        ..HARMLESS
    },
    Guest {
        name: "wall-answer-outside",
        // A response of 100 MB, of which only the beginning is inside the memory.
        attack: "(return (call $answer (i32.const 0) (i32.const 72) (i32.const 100000000)))",
        ..HARMLESS
    },
];

impl Guest {
    /// Returns the component of the guest.
    pub(crate) fn component(&self) -> Result<Vec<u8>> {
        let functions = format!(
            r#"{more}
            (func (export "execute") (param $request i32) (result i32) (local $n i32)
                (if (i32.gt_u (i32.load offset=44 (local.get $request)) (i32.const 2)) (then {attack}))
                (call $answer (i32.const 0) (i32.const 72) (i32.const 2)))"#,
            more = self.more,
            attack = self.attack,
        );
        component(&ALLOCATOR.replace("(; first ;)", self.allocating), &functions, self.after)
    }

    /// Installs the guest in the server's plugins folder.
    pub(crate) fn install(&self, server: &Server) -> Result<()> {
        install(server, self.name, &self.component()?)
    }
}

/// Returns a component with the types of the contract and these functions.
pub(crate) fn component(allocator: &str, functions: &str, after: &str) -> Result<Vec<u8>> {
    let wat = GUEST
        .replace("(; types ;)", TYPES)
        .replace("(; allocator ;)", allocator)
        .replace("(; functions ;)", functions)
        .replace("(; after ;)", after);
    wat::parse_str(&wat).context("the text of the guest cannot be parsed")
}

/// Installs `component`, with a manifest of one tool, in the server's plugins folder.
pub(crate) fn install(server: &Server, name: &str, component: &[u8]) -> Result<()> {
    let folder = server.plugins_dir().join(name);
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    write(&folder.join("plugin.wasm"), component)?;
    write(&folder.join("monstrum.yaml"), manifest(name).as_bytes())
}

/// Returns the name of the tool of the plugin `name`.
pub(crate) fn tool(name: &str) -> String {
    format!("{}_run", name.replace('-', "_"))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o644))?)
}

fn manifest(name: &str) -> String {
    let tool = tool(name);
    format!(
        r#"name: {name}
version: 1.0.0
resource_type:
  id: {name}
  name: {name}
  auth_flow: manual
  config_schema: [{{ field: api_base, type: url, required: false }}]
  auth_methods:
    - method: token
      credential_schema: [{{ field: access_token, type: secret, required: true }}]
  tools:
    - name: {tool}
      description: "Attacks when it is given something."
      operation: wall.run
      input_schema: {{ type: object, properties: {{ something: {{ type: string }} }} }}
"#
    )
}
