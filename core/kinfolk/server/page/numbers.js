// Numbers for people: with their units, and no more digits than one reads.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

export const NONE = "–";

/** A count, or a dash where there is none. */
export function count(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

/** A number with three digits that count: 0.25, 3.1, 57, 1,234. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const digits = value === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return new Intl.NumberFormat("en", { maximumFractionDigits: digits }).format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  let left = value;
  while (left >= 1023.5 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? WHOLE.format(left) : short(left)} ${UNITS[unit]}`;
}

export function speed(value) {
  return value === null || value === undefined ? NONE : `${short(value)} tokens/s`;
}

export function percent(part, whole) {
  return whole ? `${short((100 * part) / whole)} %` : NONE;
}

/** Seconds in the two largest units: 45 s, 3 min 5 s, 2 h 1 min, 4 d 0 h. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The line of a chart in a box of 100 x 100; null where nothing was seen leaves a gap. */
export function line(values) {
  const top = Math.max(1, ...values.map((value) => value ?? 0));
  const step = values.length > 1 ? 100 / (values.length - 1) : 0;
  let path = "";
  let drawing = false;
  values.forEach((value, place) => {
    if (value !== null) {
      const y = 98 - (96 * value) / top;
      path += `${drawing ? "L" : "M"}${(place * step).toFixed(2)} ${y.toFixed(2)}`;
      if (!drawing) path += "h0.01";
    }
    drawing = value !== null;
  });
  return path;
}
