-- The user for whom an authorization obtains a credential, and the way in which the user is known, as JSON; null for the
-- shared credential of the resource. `return_to` is the URL to which the browser goes at the end. The MAC of a row covers
-- these columns only if they are not null, so that authorizations under way keep their MACs.
alter table oauth_flows add column subject text;
alter table oauth_flows add column return_to text;
