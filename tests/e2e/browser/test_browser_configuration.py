"""The configuration as form and as text: each follows the other, errors stand where they are, nothing is applied unseen."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.browser
ADDRESS = "/models/digits_torch/configuration"


@pytest.fixture
def editor(page: Page) -> Page:
    page.goto(ADDRESS)
    expect(page.locator("#config-status")).to_have_text("valid")
    return page


def test_the_text_follows_the_form_and_marks_what_changed(editor: Page) -> None:
    editor.get_by_label("Queue delay").fill("750")
    expect(editor.locator("#config-text")).to_have_value(re.compile("max_queue_delay_microseconds: 750"))
    expect(editor.locator('[data-field="max_queue_delay_microseconds"]')).to_have_class(re.compile("changed"))
    expect(editor.locator("#config-gutter .changed-line").first).to_be_visible()
    expect(editor.locator("#config-summary")).to_contain_text("in place")
    editor.get_by_role("button", name="Discard changes").click()
    expect(editor.get_by_label("Queue delay")).to_have_value("500")
    expect(editor.get_by_role("button", name="Review changes")).to_be_disabled()


def test_the_form_follows_the_text(editor: Page) -> None:
    text = editor.locator("#config-text").input_value()
    editor.locator("#config-text").fill(text.replace("max_batch_size: 64", "max_batch_size: 32"))
    expect(editor.get_by_label("Largest batch")).to_have_value("32")
    expect(editor.locator("#config-text")).to_have_value(re.compile("# The convolutional network"))


def test_a_late_answer_does_not_undo_what_was_typed_meanwhile(page: Page) -> None:
    late: list[Route] = []
    page.route("**/configuration/preview", lambda route: route.continue_() if late else late.append(route))
    page.goto(ADDRESS)
    while not late:
        page.wait_for_timeout(20)
    page.get_by_label("Queue delay").fill("750")
    page.get_by_label("Largest batch").focus()
    late[0].continue_()
    expect(page.locator("#config-text")).to_have_value(re.compile("max_queue_delay_microseconds: 750"))
    expect(page.get_by_label("Queue delay")).to_have_value("750")


def test_an_error_stands_at_its_line_and_cannot_be_applied(editor: Page) -> None:
    text = editor.locator("#config-text").input_value()
    editor.locator("#config-text").fill(text.replace("max_batch_size", "max_batchsize"))
    problem = editor.locator("#config-problems .error").first
    expect(problem).to_contain_text("max_batchsize")
    expect(problem).to_contain_text(re.compile(r"Line \d+"))
    expect(editor.locator("#config-gutter .bad")).to_have_count(1)
    expect(editor.get_by_role("button", name="Review changes")).to_be_disabled()


def test_an_error_stands_at_its_field(editor: Page) -> None:
    editor.get_by_label("Queue delay").fill("soon")
    field = editor.locator('[data-field="max_queue_delay_microseconds"]')
    expect(field.locator("[data-error]")).to_contain_text("whole number")
    expect(editor.get_by_label("Queue delay")).to_have_attribute("aria-invalid", "true")
    expect(editor.get_by_label("Queue delay")).to_have_value("soon")


def test_a_change_is_reviewed_applied_and_taken_back(editor: Page) -> None:
    editor.locator('[data-rows="instance_groups"] [data-key="count"]').first.fill("2")
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 2"))
    editor.get_by_role("button", name="Review changes").click()
    review = editor.get_by_role("dialog", name="Review changes")
    expect(review).to_contain_text("Applies in place")
    expect(review.locator(".diff .add").first).to_contain_text("count: 2")
    review.get_by_label("What is this change for?").fill("more at once")
    review.get_by_role("button", name="Apply").click()
    expect(editor.locator(".toasts")).to_contain_text("The configuration is applied")
    expect(editor.locator(".list").last).to_contain_text("more at once")
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 2"))

    editor.get_by_role("link", name=re.compile("Go back to ")).first.click()
    expect(editor.locator("#back .diff")).to_contain_text("count: 1")
    with editor.expect_response(lambda answer: answer.request.method == "POST"):
        editor.get_by_role("button", name=re.compile("Go back to ")).click()
    editor.goto(ADDRESS)
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 1"))


def test_what_contradicts_the_model_file_stands_at_its_control(editor: Page) -> None:
    editor.goto("/models/digits/configuration")
    row = editor.locator('[data-rows="inputs"] [data-item]').first
    row.locator('[data-key="dims"]').fill("3, 8, 8")
    expect(row.locator("[data-row-error]")).to_contain_text("but the model expects")
    expect(row.locator('[data-key="dims"]')).to_have_attribute("aria-invalid", "true")
    expect(editor.locator("#config-status")).to_contain_text("error")
    expect(editor.get_by_role("button", name="Review changes")).to_be_disabled()


def test_residency_parameters_and_warm_up_have_controls(editor: Page) -> None:
    editor.get_by_label("Weights in memory").select_option("on_demand")
    editor.get_by_label("Sleeps after").fill("60")
    editor.get_by_role("button", name="Add sample").click()
    editor.get_by_role("button", name="Add parameter").click()
    row = editor.locator('[data-rows="parameters"] [data-item]').last
    row.get_by_label("Key").fill("INTRA_OP_THREAD_COUNT")
    row.get_by_label("Value").fill("many")
    expect(editor.locator('[data-field="parameters"] > .card-body > [data-error]')).to_contain_text("whole number")
    row.get_by_label("Value").fill("1")
    text = editor.locator("#config-text")
    expect(text).to_have_value(re.compile('"on_demand'.replace('"', r'\\"')))
    expect(text).to_have_value(re.compile("model_warmup"))
    expect(text).to_have_value(re.compile("INTRA_OP_THREAD_COUNT"))
    expect(editor.get_by_role("button", name="Review changes")).to_be_enabled()


def test_two_people_edit_and_the_second_merges(editor: Page) -> None:
    other = editor.context.new_page()
    other.goto(ADDRESS)
    expect(other.locator("#config-status")).to_have_text("valid")
    apply(other, "Queue delay", "600")
    expect(other.locator(".toasts")).to_contain_text("The configuration is applied")

    editor.watch.allowed = ("409 (Conflict)",)  # type: ignore[attr-defined]
    apply(editor, "Largest batch", "32")
    conflict = editor.locator("#conflict")
    expect(conflict.locator("#conflict-theirs")).to_contain_text("max_queue_delay_microseconds: 600")
    expect(conflict.locator("#conflict-yours")).to_contain_text("max_batch_size: 32")
    expect(editor.get_by_label("Largest batch")).to_have_value("32")
    expect(editor.get_by_label("Queue delay")).to_have_value("500")

    conflict.get_by_role("button", name="Merge both").click()
    expect(editor.get_by_label("Queue delay")).to_have_value("600")
    expect(editor.get_by_label("Largest batch")).to_have_value("32")
    editor.get_by_role("button", name="Review changes").click()
    review = editor.get_by_role("dialog", name="Review changes")
    expect(review.locator(".diff .add")).to_have_count(1)
    review.get_by_role("button", name="Apply").click()
    expect(editor.locator(".toasts")).to_contain_text("The configuration is applied")
    expect(editor.get_by_label("Queue delay")).to_have_value("600")
    expect(editor.get_by_label("Largest batch")).to_have_value("32")
    other.close()


def apply(page: Page, label: str, value: str) -> None:
    page.get_by_label(label).fill(value)
    expect(page.locator("#config-text")).to_have_value(re.compile(f": {value}"))
    page.get_by_role("button", name="Review changes").click()
    page.get_by_role("dialog", name="Review changes").get_by_role("button", name="Apply").click()
