-- People also approve steps of workflows: a question of a run, which may name calls of its later steps. The MAC covers the new
-- columns where they are not null, so the approvals that exist keep their MACs.
alter table approvals drop constraint approvals_kind_check;
alter table approvals alter column tool drop not null;
alter table approvals alter column resource_id drop not null;
alter table approvals alter column operation drop not null;
alter table approvals alter column effect drop not null;
-- The run, the step and the item of a question; null for a call.
alter table approvals add column run_id text collate "C";
alter table approvals add column run_step text collate "C";
alter table approvals add column item text collate "C";
-- JSON: the calls of later steps that are approved, each with its digest, and the keys that started the run.
alter table approvals add column targets text collate "C";
alter table approvals add column starters text collate "C";
alter table approvals add constraint approvals_kind_check check (kind in ('call', 'step'));
alter table approvals add constraint approvals_call_check
    check ((kind = 'call') = (tool is not null and resource_id is not null and operation is not null and effect is not null));
alter table approvals add constraint approvals_step_check
    check ((kind = 'step') = (run_id is not null and run_step is not null and targets is not null and starters is not null));
create index approvals_run on approvals (run_id) where run_id is not null;
