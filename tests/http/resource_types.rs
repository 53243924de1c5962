//! Tests of `/api/resource-types`.

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, send};
use crate::stable::stable;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
async fn a_type_is_its_whole_contract_in_the_language_of_the_caller() -> Result<()> {
    let server = Server::start(&["github"]).await?;
    let api = server.api()?;
    let (_, mut contract) = api.get("/api/resource-types/github").await?;
    let (_, list) = api.get("/api/resource-types").await?;
    // The built-in types of the platform are included in the list.
    let (_, agent) = api.get("/api/resource-types/agent").await?;
    let (_, bot) = api.get("/api/resource-types/bot").await?;
    let (_, llm) = api.get("/api/resource-types/llm").await?;
    let (_, mcp) = api.get("/api/resource-types/mcp").await?;
    assert_eq!(list, json!({ "items": [agent, bot, contract, llm, mcp], "next_cursor": null }));
    if let Some(tools) = contract["tools"].as_array_mut() {
        tools.truncate(1);
    }
    assert_json_snapshot!(stable(&contract), @r#"
    {
      "id": "github",
      "name": "GitHub",
      "mode": "plugin",
      "description": "GitHub code hosting platform",
      "icon": "github",
      "auth_flow": "oauth",
      "tool_discovery": "static",
      "tools": [
        {
          "name": "github_list_issues",
          "description": "List issues from a GitHub repository.",
          "operation": "issue.read",
          "input_schema": {
            "type": "object",
            "properties": {
              "repo": {
                "type": "string",
                "description": "owner/repo format"
              },
              "state": {
                "type": "string",
                "enum": [
                  "open",
                  "closed",
                  "all"
                ],
                "default": "open"
              },
              "labels": {
                "type": "array",
                "items": {
                  "type": "string"
                }
              },
              "since": {
                "type": "string",
                "description": "ISO 8601 timestamp"
              },
              "page": {
                "type": "integer",
                "minimum": 1,
                "default": 1,
                "description": "Page number; a page with fewer than per_page issues is the last"
              },
              "per_page": {
                "type": "integer",
                "default": 30,
                "description": "Issues per page, at most 100"
              }
            },
            "required": [
              "repo"
            ]
          },
          "output_schema": null,
          "effect": "read",
          "result": "json",
          "cost": null
        }
      ],
      "scope_dimensions": [
        {
          "key": "repos",
          "param_paths": [
            "repo",
            "owner_repo"
          ],
          "match_mode": "pattern",
          "operation_filter": null,
          "error_template": "Repository {value} is not authorized"
        }
      ],
      "auth_methods": [
        {
          "method": "oauth2_auth_code",
          "label": "OAuth Login",
          "description": "Authorize via GitHub OAuth",
          "credential_schema": [
            {
              "field": "access_token",
              "type": "secret",
              "required": true,
              "default": null,
              "enum_values": null,
              "description": "OAuth Access Token (obtained automatically)"
            }
          ],
          "oauth_config": {
            "authorization_url": "https://github.com/login/oauth/authorize",
            "token_url": "https://github.com/login/oauth/access_token",
            "device_authorization_url": null,
            "scopes": [
              "repo",
              "read:org"
            ],
            "pkce_required": false
          },
          "inject": [
            {
              "header": "Authorization",
              "value": "Bearer {access_token}"
            }
          ],
          "audience": null
        },
        {
          "method": "token",
          "label": "Personal Access Token",
          "description": "Configure manually with a GitHub PAT",
          "credential_schema": [
            {
              "field": "access_token",
              "type": "secret",
              "required": true,
              "default": null,
              "enum_values": null,
              "description": "GitHub Personal Access Token"
            }
          ],
          "oauth_config": null,
          "inject": [
            {
              "header": "Authorization",
              "value": "Bearer {access_token}"
            }
          ],
          "audience": null
        }
      ],
      "config_schema": [
        {
          "field": "api_base",
          "type": "url",
          "required": false,
          "default": "https://api.github.com",
          "enum_values": null,
          "description": "GitHub API base URL (customize for GitHub Enterprise)"
        }
      ],
      "credential_schema": [
        {
          "field": "access_token",
          "type": "secret",
          "required": true,
          "default": null,
          "enum_values": null,
          "description": "GitHub Access Token"
        }
      ],
      "credential_check": null,
      "plugin": {
        "name": "github",
        "version": "1.0.0",
        "digest": "[digest]",
        "description": "GitHub integration plugin — issues, comments, labels, and repository info",
        "author": "Monstrum",
        "license": "MIT",
        "tags": [
          "scm",
          "github",
          "issues"
        ],
        "homepage": null,
        "repository": "https://github.com/MonstrumAI/monstrum"
      }
    }
    "#);

    let mut answers = Answers::default();
    for language in
        ["zh-CN", "zh", "ZH-cn", "fr, zh-CN;q=0.5", "en-US, zh-CN;q=0.9", "zh-CN;q=0", "de", "*", "\u{e9};;,"]
    {
        let request = api.request(Method::GET, "/api/resource-types/github").header("Accept-Language", language);
        let (status, _, body) = send(request).await?;
        answers.add(language, (status, json!([body["description"], body["tools"][0]["description"]])));
    }
    assert_snapshot!(answers, @r#"
    zh-CN: 200 ["GitHub 集成插件:Issue、评论、标签与仓库信息","列出 GitHub 仓库的 Issue。"]
    zh: 200 ["GitHub 集成插件:Issue、评论、标签与仓库信息","列出 GitHub 仓库的 Issue。"]
    ZH-cn: 200 ["GitHub 集成插件:Issue、评论、标签与仓库信息","列出 GitHub 仓库的 Issue。"]
    fr, zh-CN;q=0.5: 200 ["GitHub 集成插件:Issue、评论、标签与仓库信息","列出 GitHub 仓库的 Issue。"]
    en-US, zh-CN;q=0.9: 200 ["GitHub integration plugin — issues, comments, labels, and repository info","List issues from a GitHub repository."]
    zh-CN;q=0: 200 ["GitHub code hosting platform","List issues from a GitHub repository."]
    de: 200 ["GitHub code hosting platform","List issues from a GitHub repository."]
    *: 200 ["GitHub code hosting platform","List issues from a GitHub repository."]
    é;;,: 200 ["GitHub code hosting platform","List issues from a GitHub repository."]
    "#);
    let request = api.request(Method::GET, "/api/resource-types/github").header("Accept-Language", "zh-CN");
    assert_json_snapshot!(texts(&send(request).await?.2), @r#"
    {
      "description": "GitHub 集成插件:Issue、评论、标签与仓库信息",
      "tools": [
        [
          "github_list_issues",
          "列出 GitHub 仓库的 Issue。"
        ],
        [
          "github_create_issue",
          "在 GitHub 仓库中新建 Issue。"
        ],
        [
          "github_update_issue",
          "更新已有的 GitHub Issue。"
        ],
        [
          "github_add_labels",
          "为 GitHub Issue 添加标签。"
        ],
        [
          "github_remove_labels",
          "移除 GitHub Issue 的标签。"
        ],
        [
          "github_add_comment",
          "为 GitHub Issue 添加评论。"
        ],
        [
          "github_list_comments",
          "列出 GitHub Issue 的评论。"
        ],
        [
          "github_get_repo",
          "获取 GitHub 仓库的信息。"
        ]
      ],
      "scope_dimensions": [
        [
          "repos",
          "仓库 {value} 不在授权范围内"
        ]
      ],
      "auth_methods": [
        [
          "oauth2_auth_code",
          "OAuth 登录",
          "通过 GitHub OAuth 授权"
        ],
        [
          "token",
          "个人访问令牌",
          "手动填写 GitHub 个人访问令牌(PAT)"
        ]
      ]
    }
    "#);
    let mut answers = Answers::default();
    for id in ["absent", "Git%20Hub", "..%2fgithub"] {
        answers.add(id, api.get(&format!("/api/resource-types/{id}")).await?);
    }
    assert_snapshot!(answers, @r#"
    absent: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource type","request_id":"[id 1]"}
    Git%20Hub: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 2]"}
    ..%2fgithub: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 3]"}
    "#);
    Ok(())
}

/// Returns the texts of the contract that people read.
fn texts(contract: &Value) -> Value {
    let each = |list: &str, fields: &[&str]| -> Value {
        let items = contract[list].as_array().into_iter().flatten();
        items.map(|item| fields.iter().map(|field| item[*field].clone()).collect::<Value>()).collect()
    };
    json!({
        "description": contract["description"],
        "tools": each("tools", &["name", "description"]),
        "scope_dimensions": each("scope_dimensions", &["key", "error_template"]),
        "auth_methods": each("auth_methods", &["method", "label", "description"]),
    })
}
