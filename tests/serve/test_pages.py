"""The pages: what they may load, and what they are made of."""

import re


def test_the_page_is_served_with_a_policy_that_names_its_scripts(client):
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    said = answer.headers["content-security-policy"].removesuffix("; frame-ancestors 'none'")
    assert f'content="{said}"' in answer.text  # as the page itself has it
    rules = dict(rule.strip().split(" ", 1) for rule in said.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in rules["script-src"]
    assert client.head("/").status_code == 200


def test_every_module_that_the_page_names_is_there(client):
    names = re.findall(r'src="/?page/([\w.-]+)"', client.get("/").text)
    todo, seen = list(names), set()
    while todo:
        name = todo.pop()
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].startswith("text/javascript")
        seen.add(name)
        todo += set(re.findall(r'from "\./([\w.-]+)"', answer.text)) - seen
    assert names
