"""How each client is called: its files and variables, and the call of a tool that its model makes.

Every client runs in a home and a working folder of its own, both empty but for `files`, and in an
environment of `variables` and a PATH. It is asked to have hello written into made.txt.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = "smollm2"
MADE = "made.txt"
TASK = f"Write the word hello into the file {MADE}."
COMMAND = f"echo hello > {MADE}"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATIENCE = 1800  # seconds for an answer to begin: a long prompt takes minutes on two cores


@dataclass(frozen=True)
class Agent:
    """One client. In `command`, `files` and `variables` {url} is the server's, {home} its home."""

    name: str
    package: str
    surface: str
    tool: str
    arguments: Mapping[str, Any]
    command: tuple[str, ...]  # begins with a program of npm's, or node
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # path below the home -> text

    def filled(self, text: str, url: str, home: Path) -> str:
        return text.replace("{url}", url).replace("{home}", str(home))


CODEX = f"""\
model = "{MODEL}"
model_provider = "radixserve"
[model_providers.radixserve]
name = "radixserve"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "RADIXSERVE_KEY"
stream_idle_timeout_ms = {PATIENCE * 1000}
request_max_retries = 0
stream_max_retries = 0
"""

OPENCODE = json.dumps(
    {
        "provider": {
            "radixserve": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "radixserve",
                "options": {"baseURL": "{url}/v1", "apiKey": "none", "timeout": False},
                "models": {MODEL: {"name": MODEL}},
            }
        },
        "permission": {"bash": "allow"},
        "share": "disabled",
        "autoupdate": False,
    }
)

AGENTS = (
    Agent(
        "Claude Code",
        "@anthropic-ai/claude-code",
        MESSAGES,
        "Bash",
        {"command": COMMAND, "description": "Writes the file"},
        ("claude", "-p", TASK, "--model", MODEL, "--dangerously-skip-permissions"),
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "API_TIMEOUT_MS": str(PATIENCE * 1000),
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(PATIENCE * 1000),
            "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(PATIENCE * 1000),
            "IS_SANDBOX": "1",  # else it refuses to skip permissions as root
        },
    ),
    Agent(
        "Codex",
        "@openai/codex",
        RESPONSES,
        "exec_command",
        {"cmd": COMMAND},
        (
            *("codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", TASK),
        ),
        {"RADIXSERVE_KEY": "none", "CODEX_HOME": "{home}/.codex"},
        {".codex/config.toml": CODEX},
    ),
    Agent(
        "Qwen Code",
        "@qwen-code/qwen-code",
        CHAT,
        "run_shell_command",
        {"command": COMMAND, "is_background": False},
        ("qwen", "--auth-type", "openai", "-y", "-p", TASK),
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL},
        {
            ".qwen/settings.json": json.dumps(
                {
                    "privacy": {"usageStatisticsEnabled": False},
                    "telemetry": {"enabled": False},
                    "general": {"disableAutoUpdate": True},
                    "model": {"generationConfig": {"timeout": PATIENCE * 1000, "maxRetries": 0}},
                }
            )
        },
    ),
    Agent(
        "opencode",
        "opencode-ai",
        CHAT,
        "bash",
        {"command": COMMAND, "description": "Writes the file"},
        ("opencode", "run", "-m", f"radixserve/{MODEL}", TASK),
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        {".config/opencode/opencode.json": OPENCODE},
    ),
    Agent(
        "Vercel AI SDK",
        "ai",
        CHAT,
        "write_file",
        {"path": MADE, "text": "hello"},
        ("node", "{packages}/ai-sdk.mjs", "{url}/v1", MODEL, TASK),
    ),
)
