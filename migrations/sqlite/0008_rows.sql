-- Authenticated rows. Each row that permits something carries a MAC: the version of the row key (4 bytes) and an
-- HMAC-SHA-256 (32 bytes). The code table of the store says which columns it covers.
alter table workspaces add column mac blob;
alter table roles add column mac blob;
alter table bots add column mac blob;
alter table api_keys add column mac blob;
alter table resources add column mac blob;
alter table credentials add column mac blob;
alter table bot_resources add column mac blob;
alter table oauth_providers add column mac blob;
alter table oauth_flows add column mac blob;
alter table trust add column mac blob;
alter table owners add column mac blob;
alter table plugins add column mac blob;
alter table plugin_versions add column mac blob;
alter table sandbox_instances add column mac blob;

-- The MAC of a version covers the digest of its locales; null in rows from before.
alter table plugin_versions add column locales_digest text;

-- One row a scope: `instance`, or the id of a workspace. The record holds how many valid rows the scope has and a sum over
-- them. It is encrypted under the row key and bound to scope and generation.
create table policy_seals (
    scope text primary key,
    -- Grows with every change of a row of the scope.
    generation bigint not null,
    sealed text not null
);
