// Personal columns are masked, and no chart is named after them.
import { expect, test } from "vitest";
import { roleOf, shownOf } from "../src/logic/columns";

test("a private column shows that there is a value and not which", () => {
  const email = { name: "email", type: "string", private: true };
  expect(shownOf(email, "ann@example.org")).toBe("***");
  expect(shownOf(email, null)).toBe(null);
  expect(shownOf({ name: "city", type: "string" }, "Bonn")).toBe("Bonn");
  expect(roleOf(email)).toBe("other");
});
