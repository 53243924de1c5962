-- The MAC of a row covers these columns only if they are not null, so that rows of earlier releases keep their MACs.

-- The gates of bots, roles and bindings, as JSON.
alter table bots add column gates text;
alter table roles add column gates text;
alter table bot_resources add column gates text;

-- The labels of a resource, as JSON.
alter table resources add column labels text;
