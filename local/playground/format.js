/** Numbers and times as people read them. */

const COUNT = new Intl.NumberFormat("en");
const TIME = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const DATE = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

/** @param {number} count */
export function formatCount(count) {
  return COUNT.format(count);
}

/** @param {number} count */
export function formatShort(count) {
  return count < 1000 ? String(count) : `${(count / 1000).toFixed(count < 10_000 ? 1 : 0).replace(/\.0$/, "")}k`;
}

/** @param {number} milliseconds */
export function formatDuration(milliseconds) {
  if (milliseconds < 1) return "<1 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(milliseconds < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
}

/**
 * The heading that a session of this time stands under.
 * @param {Date} date
 * @param {Date} [now]
 */
export function ageGroup(date, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const days = Math.ceil((midnight.getTime() - date.getTime()) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "This week" : "Earlier";
}

/** @param {Date} date */
export function formatDay(date) {
  return DATE.format(date);
}

/** @param {number} cents */
export function formatCents(cents) {
  if (cents >= 100) return `$${(cents / 100).toFixed(2)}`;
  return `${cents >= 10 ? cents.toFixed(0) : cents.toPrecision(cents < 0.01 ? 1 : 2)} ¢`;
}

/** @param {Date} date */
export function formatTime(date) {
  return TIME.format(date);
}

/** A value of JSON, laid out for reading. @param {unknown} value */
export function formatJson(value) {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
