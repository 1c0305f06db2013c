import { type ClassValue, clsx } from "clsx";
import { twMerge } from "tailwind-merge";

/** Joins class names. Of two Tailwind classes for the same property the last one wins. */
export function cn(...classes: ClassValue[]): string {
  return twMerge(clsx(classes));
}
