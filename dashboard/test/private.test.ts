// Personal columns are masked, and no chart is named after them.
import { expect, test } from "vitest";
import { roleOf, shownOf } from "../src/logic/columns";
import { mayBeKept } from "../src/logic/subscriptions";

test("a private column shows that there is a value and not which", () => {
  const email = { name: "email", type: "string", private: true };
  expect(shownOf(email, "ann@example.org")).toBe("***");
  expect(shownOf(email, null)).toBe(null);
  expect(shownOf({ name: "city", type: "string" }, "Bonn")).toBe("Bonn");
  expect(roleOf(email)).toBe("other");
});

test("rows with a private column are not kept in the browser", () => {
  const view = (columns: { name: string; type: string; private?: boolean }[]) => ({ view: "v", key: ["id"], columns, order_by: null, limit: null });
  const id = { name: "id", type: "int" };
  expect([mayBeKept(view([id])), mayBeKept(view([id, { name: "email", type: "string", private: true }]))]).toEqual([true, false]);
});
