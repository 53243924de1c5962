#![allow(clippy::all, clippy::unwrap_used, clippy::print_stdout)]
use monstrum_store::*; use monstrum_types::*; use std::time::Instant;
fn event(ws: WorkspaceId, sequence: i64, request_id: RequestId, bot: BotId) -> AuditRow {
    AuditRow { writer: "node-1".into(), sequence, kind: AuditKind::Finished, request_id, workspace_id: Some(ws), bot_id: Some(bot), task_id: None, resource_id: Some(ResourceId::new()),
        tool: Some("github_list_issues".into()), operation: Some("issue.read".into()), plugin: Some("github".into()), plugin_digest: Some(format!("sha256:{}", "0".repeat(64))),
        status: Some("success".into()), code: None, message: None, rule: Some("role".into()), params: Some(r#"{"repo":"acme/web","state":"open","labels":["bug"]}"#.into()), duration_ms: Some(12), started_at: UtcMillis(1), at: UtcMillis(2),
        parent_request_id: None, delegation: None, flags: None, key_version: 1, previous_hash: [1; 32], hash: [2; 32] }
}
#[tokio::main]
async fn main() {
    let dir = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    for batch in [1usize, 8, 64, 128, 256] {
        let f = dir.join(format!("b{batch}.db")); let _ = std::fs::remove_file(&f);
        let store = Store::open(StoreOptions::sqlite(&f)).await.unwrap();
        let ws = store.workspace_named("default").await.unwrap().unwrap().id; let bot = BotId::new();
        let total = if batch == 1 { 2000 } else if batch == 8 { 16000 } else { 102_400 };
        let groups: Vec<Vec<AuditRow>> = (0..total / batch).map(|g| (0..batch).map(|i| event(ws, (g * batch + i + 1) as i64, RequestId::new(), bot)).collect()).collect();
        let t = Instant::now();
        for g in &groups { store.append(g).await.unwrap(); }
        let e = t.elapsed();
        println!("batch {batch}: {:.0} rows/s, {:.2} ms a batch", total as f64 / e.as_secs_f64(), e.as_secs_f64() * 1e3 / (total / batch) as f64);
        if batch == 256 {
            let t = Instant::now(); let mut n = 0; let mut bytes = 0; let mut from = Some(0);
            while let Some(f) = from { let p = store.scan("node-1", f, 1000).await.unwrap(); for r in &p.rows { bytes += r.as_ref().unwrap().canonical().len(); n += 1; } from = p.next; }
            let e = t.elapsed(); println!("scan {n} rows {:.2} us a row, {} bytes a row", e.as_secs_f64() * 1e6 / n as f64, bytes / n);
            let row = &groups[0][0]; let t = Instant::now(); let mut b = 0; for _ in 0..100_000 { b += row.canonical().len(); } println!("canonical {:.2} us ({b})", t.elapsed().as_secs_f64() * 10.0);
            let t = Instant::now(); let p = store.calls(ws, &CallFilter::default(), &Page::first(50)).await.unwrap(); println!("page {:?} {}", t.elapsed(), p.items.len());
            let t = Instant::now(); let p = store.calls(ws, &CallFilter { bot_id: Some(BotId::new()), ..Default::default() }, &Page::first(50)).await.unwrap(); println!("page none of {total}: {:?} {}", t.elapsed(), p.items.len());
            let t = Instant::now(); store.open_starts("node-1").await.unwrap(); println!("open starts {:?}", t.elapsed());
            let t = Instant::now(); for _ in 0..100 { store.snapshot().await.unwrap(); } println!("snapshot empty {:?}", t.elapsed() / 100);
        }
        store.close().await;
    }
}
