"""Uses a bot through Python clients of the OpenAI API, one after the other, and prints what each has got as JSON, one
document a line. `clients.rs` says what is expected.

The URL and the key are in OPENAI_BASE_URL and OPENAI_API_KEY. All else, such as how often a request is repeated, is as the
clients have it by default.
"""

import asyncio
import json
import os
import sys

BOT = "tester"
SYSTEM = "Be brief."
ASKED = "How many issues are there?"
AGAIN = "Are you sure?"
WEATHER = "How is the weather in Berlin and Paris?"
COUNT = "Count the issues, as JSON."

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "Returns the weather in a city."


def weather(city):
    return f"It rains in {city}."


def tell(client, what, **values):
    print(json.dumps({"client": client, "what": what, **values}), flush=True)


def with_openai_chat():
    from openai import OpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        n: int

    client = OpenAI()
    name = "openai chat"
    tell(name, "models", text=" ".join(model.id for model in client.models.list()))

    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    answer = client.chat.completions.create(model=BOT, messages=messages)
    tell(name, "whole", text=answer.choices[0].message.content, tokens=answer.usage.total_tokens)
    messages += [answer.choices[0].message, {"role": "user", "content": AGAIN}]
    answer = client.chat.completions.create(model=BOT, messages=messages)
    tell(name, "again", text=answer.choices[0].message.content)

    text, tokens = "", None
    for chunk in client.chat.completions.create(
        model=BOT, messages=messages[:2], stream=True, stream_options={"include_usage": True}
    ):
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    tell(name, "streamed", text=text, tokens=tokens)

    function = {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS, "strict": True}
    tools = [{"type": "function", "function": function}]
    for what in ["tools", "tools streamed"]:
        messages = [{"role": "user", "content": WEATHER}]
        while True:
            if what == "tools":
                said = client.chat.completions.create(model=BOT, messages=messages, tools=tools).choices[0].message
            else:
                with client.chat.completions.stream(model=BOT, messages=messages, tools=tools) as stream:
                    said = stream.get_final_completion().choices[0].message
            messages.append(said)
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        tell(name, what, text=said.content)

    messages = [{"role": "user", "content": COUNT}]
    answer = client.chat.completions.parse(model=BOT, messages=messages, response_format=Count)
    tell(name, "form", n=answer.choices[0].message.parsed.n)
    with client.chat.completions.stream(model=BOT, messages=messages, response_format=Count) as stream:
        answer = stream.get_final_completion()
    tell(name, "form streamed", n=answer.choices[0].message.parsed.n)


def with_openai_responses():
    from openai import OpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        n: int

    client = OpenAI()
    name = "openai responses"
    answer = client.responses.create(model=BOT, instructions=SYSTEM, input=ASKED)
    tell(name, "whole", text=answer.output_text, tokens=answer.usage.total_tokens)
    answer = client.responses.create(model=BOT, input=AGAIN, previous_response_id=answer.id)
    tell(name, "again", text=answer.output_text)
    tell(name, "kept", text=client.responses.retrieve(answer.id).output_text)

    with client.responses.stream(model=BOT, instructions=SYSTEM, input=ASKED) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        answer = stream.get_final_response()
    tell(name, "streamed", text=text, tokens=answer.usage.total_tokens)

    tool = {"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}
    tools = [{**tool, "strict": True}]
    for what in ["tools", "tools streamed", "tools without previous"]:
        given, previous = [{"role": "user", "content": WEATHER}], None
        while True:
            # Without a previous response, the client keeps the conversation itself.
            options = {"model": BOT, "input": given, "tools": tools}
            if what == "tools without previous":
                options["store"] = False
            elif previous:
                options["previous_response_id"] = previous
            if what == "tools streamed":
                with client.responses.stream(**options) as stream:
                    answer = stream.get_final_response()
            else:
                answer = client.responses.create(**options)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            previous = answer.id
            results = [
                {"type": "function_call_output", "call_id": call.call_id, "output": weather(**json.loads(call.arguments))}
                for call in calls
            ]
            given = [*given, *answer.output, *results] if what == "tools without previous" else results
        tell(name, what, text=answer.output_text)

    answer = client.responses.parse(model=BOT, input=COUNT, text_format=Count)
    tell(name, "form", n=answer.output_parsed.n)


def with_langchain(responses):
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        """The number of issues."""

        n: int

    @tool
    def get_weather(city: str) -> str:
        """Returns the weather in a city."""
        return weather(city)

    model = ChatOpenAI(model=BOT, use_responses_api=responses)
    name = f"langchain-openai {'responses' if responses else 'chat'}"
    messages = [SystemMessage(SYSTEM), HumanMessage(ASKED)]
    answer = model.invoke(messages)
    tell(name, "whole", text=answer.text, tokens=answer.usage_metadata["total_tokens"])
    tell(name, "again", text=model.invoke([*messages, answer, HumanMessage(AGAIN)]).text)
    text, tokens = "", None
    for chunk in model.stream(messages):
        text += chunk.text
        tokens = chunk.usage_metadata["total_tokens"] if chunk.usage_metadata else tokens
    tell(name, "streamed", text=text, tokens=tokens)

    with_tools = model.bind_tools([get_weather])
    for what in ["tools", "tools streamed"]:
        messages = [HumanMessage(WEATHER)]
        while True:
            if what == "tools":
                said = with_tools.invoke(messages)
            else:
                said = None
                for chunk in with_tools.stream(messages):
                    said = chunk if said is None else said + chunk
            messages.append(said)
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = get_weather.invoke(call["args"])
                messages.append(ToolMessage(result, tool_call_id=call["id"]))
        tell(name, what, text=said.text)
    tell(name, "form", n=model.with_structured_output(Count).invoke(COUNT).n)


async def with_agents(responses):
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Count(BaseModel):
        n: int

    @function_tool
    def get_weather(city: str) -> str:
        """Returns the weather in a city."""
        return weather(city)

    # The library sends traces of its runs to OpenAI otherwise.
    set_tracing_disabled(True)
    kind = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
    model = kind(model=BOT, openai_client=AsyncOpenAI())
    name = f"openai-agents {'responses' if responses else 'chat'}"
    agent = Agent(name="Assistant", instructions=SYSTEM, model=model)
    result = await Runner.run(agent, ASKED)
    tell(name, "whole", text=result.final_output, tokens=result.context_wrapper.usage.total_tokens)
    result = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": AGAIN}])
    tell(name, "again", text=result.final_output)

    async def streamed(agent, asked):
        result = Runner.run_streamed(agent, asked)
        async for _ in result.stream_events():
            pass
        return result

    result = await streamed(agent, ASKED)
    tell(name, "streamed", text=result.final_output, tokens=result.context_wrapper.usage.total_tokens)
    agent = Agent(name="Assistant", instructions=SYSTEM, model=model, tools=[get_weather])
    tell(name, "tools", text=(await Runner.run(agent, WEATHER)).final_output)
    tell(name, "tools streamed", text=(await streamed(agent, WEATHER)).final_output)
    agent = Agent(name="Assistant", instructions=SYSTEM, model=model, output_type=Count)
    tell(name, "form", n=(await Runner.run(agent, COUNT)).final_output.n)


def with_litellm():
    import litellm

    name, model = "litellm chat", f"openai/{BOT}"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    answer = litellm.completion(model=model, messages=messages)
    tell(name, "whole", text=answer.choices[0].message.content, tokens=answer.usage.total_tokens)
    messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": AGAIN}]
    tell(name, "again", text=litellm.completion(model=model, messages=messages).choices[0].message.content)
    text, tokens = "", None
    for chunk in litellm.completion(
        model=model, messages=messages[:2], stream=True, stream_options={"include_usage": True}
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = getattr(chunk, "usage", None)
        tokens = usage.total_tokens if usage else tokens
    tell(name, "streamed", text=text, tokens=tokens)

    tools = [{"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}}]
    for what in ["tools", "tools streamed"]:
        messages = [{"role": "user", "content": WEATHER}]
        while True:
            answer = litellm.completion(model=model, messages=messages, tools=tools, stream=what == "tools streamed")
            if what == "tools streamed":
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            said = answer.choices[0].message
            messages.append(said.model_dump())
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        tell(name, what, text=said.content)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "count", "strict": True, "schema": schema}}
    answer = litellm.completion(model=model, messages=[{"role": "user", "content": COUNT}], response_format=form)
    tell(name, "form", n=json.loads(answer.choices[0].message.content)["n"])

    name = "litellm responses"
    answer = litellm.responses(model=model, input=ASKED, instructions=SYSTEM)
    tell(name, "whole", text=answer.output_text, tokens=answer.usage.total_tokens)
    text = ""
    for event in litellm.responses(model=model, input=ASKED, instructions=SYSTEM, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    tell(name, "streamed", text=text)


CLIENTS = {
    "openai-chat": with_openai_chat,
    "openai-responses": with_openai_responses,
    "langchain-chat": lambda: with_langchain(False),
    "langchain-responses": lambda: with_langchain(True),
    "agents-chat": lambda: asyncio.run(with_agents(False)),
    "agents-responses": lambda: asyncio.run(with_agents(True)),
    "litellm": with_litellm,
}

if __name__ == "__main__":
    # litellm reads a list of prices from the Internet otherwise.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    for wanted in sys.argv[1:] or CLIENTS:
        CLIENTS[wanted]()
