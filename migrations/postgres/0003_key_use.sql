-- When a key was last used, to the minute; null for never. It is no part of the policy.
alter table api_keys add column last_used_at bigint;
