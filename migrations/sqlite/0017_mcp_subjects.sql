-- The subjects of access tokens that a bot admits, as JSON. The MAC of a row covers this column only if it is not null, so
-- that rows of earlier releases keep their MACs.
alter table bots add column mcp_subjects text;
